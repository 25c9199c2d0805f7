// Errors of the launch library: no exception crosses the C interface, the text waits for xm_error().
#pragma once

#include <exception>
#include <sstream>
#include <stdexcept>
#include <string>

namespace xm {

inline thread_local std::string last_error;

template <class... Parts> [[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

// Runs `body`; on an exception keeps its text and returns `bad`.
template <class Result, class Body> Result guarded(Result bad, Body body) noexcept {
  try {
    last_error.clear();
    return body();
  } catch (const std::exception& error) {
    last_error = error.what();
    if (last_error.empty()) last_error = "unknown error";
  } catch (...) {
    last_error = "unknown error";
  }
  return bad;
}

}  // namespace xm
