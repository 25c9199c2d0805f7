// One rank of the all-reduce probe on oneCCL's own C++ API, without torch: host buffers, or SYCL device buffers where
// it is compiled with -fsycl -DPROBE_SYCL. It speaks the same events as the Python rank (JSON lines on a pipe),
// measures the same steps from the same plan, checks the same integers, and dies with its parent.
//
//   oneccl PLAN RANK WORLD EVENTS_FD PARENT_PID STACK_FILE MEETING_FILE INJECT
//
// PLAN has one line a step: bytes dtype form rounds calls.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <cmath>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#ifdef PROBE_SYCL
#include <sycl/sycl.hpp>
#endif
#include <oneapi/ccl.hpp>

namespace {

struct Step {
    size_t bytes = 0;
    std::string dtype, form;
    int rounds = 0, calls = 0;
    std::string name() const { return std::to_string(bytes) + " B " + form; }
};

// ---- events ---------------------------------------------------------------------------------------------------------

int events_fd = -1;

void emit(const std::string& body) {
    std::string line = "{" + body + "}\n";
    for (size_t sent = 0; sent < line.size();) {
        ssize_t count = write(events_fd, line.data() + sent, line.size() - sent);
        if (count < 0) _exit(1);
        sent += static_cast<size_t>(count);
    }
}

std::string json_string(const std::string& text) {
    std::string out = "\"";
    for (char c : text) {
        if (c == '"' || c == '\\') out += '\\';
        out += static_cast<unsigned char>(c) < 32 ? ' ' : c;
    }
    return out + "\"";
}

// ---- where it stands, for a parent that asks by SIGUSR1 (in the form of a Python stack) -----------------------------

const char* volatile doing = "start";
const char* stack_file = "";

void tell(int) {
    int fd = open(stack_file, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0) return;
    const char* parts[] = {"File \"oneccl.cpp\", line 0 in ", doing, "\n"};
    for (const char* part : parts)
        if (write(fd, part, std::strlen(part)) < 0) break;
    close(fd);
}

// ---- faults ---------------------------------------------------------------------------------------------------------

struct Fault {
    std::string kind, phase;
    int rank = -1;
};
Fault fault;
int my_rank = 0;

Fault parse_fault(const std::string& text) {
    Fault found;
    size_t at = text.find('@'), colon = text.find(':');
    if (at == std::string::npos || colon == std::string::npos) return found;
    return {text.substr(0, at), text.substr(at + 1, colon - at - 1), std::atoi(text.c_str() + colon + 1)};
}

bool has(const char* kind) { return fault.kind == kind && fault.rank == my_rank; }

void strike(const std::string& phase) {
    if (fault.phase != phase || fault.rank != my_rank) return;
    doing = "strike";
    if (fault.kind == "kill") kill(getpid(), SIGKILL);
    if (fault.kind == "exit") _exit(1);
    while (fault.kind == "sleep") pause();
}

void enter(const std::string& phase, const std::string& step = "") {
    emit("\"event\": \"phase\", \"phase\": " + json_string(phase) + ", \"step\": " + json_string(step));
    if (phase != "timed") strike(phase);
}

// ---- integers whose sums are exact in every dtype (see data.py) -----------------------------------------------------

constexpr int PERIOD = 4093, LARGEST = 256;

int value_of(int index, int rank, int world, int change) {
    int contributing = std::min(world, LARGEST / 2);
    if (rank >= contributing) return 0;
    int values = std::max(2, LARGEST / contributing);
    long long mixed = (index + 1LL) * (rank * 7919LL + change * 104729LL + 12345) % 65521;
    return static_cast<int>(mixed % values);
}

// A whole number up to 256 as the bits of a dtype.
uint32_t bits_of(int number, const std::string& dtype) {
    float real = static_cast<float>(number);
    uint32_t word;
    std::memcpy(&word, &real, sizeof word);
    if (dtype == "float32") return word;
    if (dtype == "bfloat16") return word >> 16;
    if (number == 0) return 0;
    return (((word >> 23) - 127 + 15) << 10) | ((word >> 13) & 0x3ff);  // float16: exact for small integers
}

size_t width_of(const std::string& dtype) { return dtype == "float32" ? 4 : 2; }

ccl::datatype type_of(const std::string& dtype) {
    if (dtype == "float32") return ccl::datatype::float32;
    if (dtype == "bfloat16") return ccl::datatype::bfloat16;
    if (dtype == "float16") return ccl::datatype::float16;
    throw std::runtime_error("dtype: got " + dtype + ", wanted float32, bfloat16 or float16");
}

void put(std::vector<uint8_t>& target, const std::string& dtype, const std::vector<uint32_t>& base) {
    size_t width = width_of(dtype), count = target.size() / width;
    for (size_t i = 0; i < count; i++) std::memcpy(&target[i * width], &base[i % PERIOD], width);
}

// ---- the communicator, over host memory or a device's ---------------------------------------------------------------

class Ranks {
  public:
    Ranks(int rank, int world, const std::string& meeting) : rank_(rank), world_(world) {
        doing = "meet";
        ccl::shared_ptr_class<ccl::kvs> store;
        ccl::kvs::address_type address;
        if (rank == 0) {
            store = ccl::create_main_kvs();
            address = store->get_address();
            std::ofstream(meeting + ".new", std::ios::binary).write(address.data(), address.size());
            if (std::rename((meeting + ".new").c_str(), meeting.c_str())) throw std::runtime_error("meeting file");
        } else {
            while (access(meeting.c_str(), R_OK)) usleep(5000);
            std::ifstream(meeting, std::ios::binary).read(address.data(), address.size());
            store = ccl::create_kvs(address);
        }
#ifdef PROBE_SYCL
        auto gpus = sycl::device::get_devices(sycl::info::device_type::gpu);
        if (static_cast<size_t>(rank) >= gpus.size()) throw std::runtime_error("fewer GPUs than ranks");
        queue_ = sycl::queue(gpus[rank], sycl::property::queue::in_order());
        auto device = ccl::create_device(queue_.get_device());
        auto context = ccl::create_context(queue_.get_context());
        comm_ = std::make_unique<ccl::communicator>(ccl::create_communicator(world, rank, device, context, store));
        stream_ = std::make_unique<ccl::stream>(ccl::create_stream(queue_));
#else
        comm_ = std::make_unique<ccl::communicator>(ccl::create_communicator(world, rank, store));
#endif
        doing = "measure";
    }

    void measure(int index, const Step& step) {
        std::vector<uint8_t> host(step.bytes);
        uint8_t *send = allocate(step.bytes), *recv = step.form == "in_place" ? send : allocate(step.bytes);
        size_t count = step.bytes / width_of(step.dtype);
        auto call = [&] {
            doing = "allreduce";
            reduce(send, recv, count, type_of(step.dtype));
        };
        enter("warmup", step.name());
        std::fill(host.begin(), host.end(), 0);
        upload(send, host);
        call();
        wait();
        enter("check", step.name());
        std::string wrong;
        for (int change : {1, 2}) {
            std::string found = checked(step, host, send, recv, change, call);
            if (!found.empty()) wrong += (wrong.empty() ? "" : ", ") + found;
        }
        enter("timed", step.name());
        std::fill(host.begin(), host.end(), 0);
        upload(send, host);
        std::string times = timed(step, call);
        emit("\"event\": \"measured\", \"index\": " + std::to_string(index) + ", \"wrong\": [" + wrong +
             "], \"graph_us\": null, \"graph\": \"not asked for\", \"times_us\": [" + times + "]");
        if (recv != send) release(recv);
        release(send);
    }

  private:
    template <class Call>
    std::string checked(const Step& step, std::vector<uint8_t>& host, uint8_t* send, uint8_t* recv, int change,
                        Call call) {
        std::vector<uint32_t> mine(PERIOD), sums(PERIOD);
        std::vector<int> totals(PERIOD, 0);
        for (int i = 0; i < PERIOD; i++) {
            mine[i] = bits_of(value_of(i, rank_, world_, change), step.dtype);
            for (int r = 0; r < world_; r++) totals[i] += value_of(i, r, world_, change);
            sums[i] = bits_of(totals[i], step.dtype);
        }
        size_t width = width_of(step.dtype), elements = step.bytes / width, middle = elements / 2;
        put(host, step.dtype, mine);
        if (has("wrong")) {
            uint32_t other = bits_of(value_of(middle % PERIOD, rank_, world_, change) + 1, step.dtype);
            std::memcpy(&host[middle * width], &other, width);
        }
        upload(send, host);
        call();
        wait();
        download(host, recv);
        size_t bad = 0, first = 0;
        for (size_t i = 0; i < elements; i++)
            if (std::memcmp(&host[i * width], &sums[i % PERIOD], width) && !bad++) first = i;
        if (!bad) return "";
        return "{\"how\": \"eager, input " + std::to_string(change) + "\", \"count\": " + std::to_string(bad) +
               ", \"first\": " + std::to_string(first) + ", \"got\": " +
               std::to_string(real(&host[first * width], step.dtype)) + ", \"wanted\": " +
               std::to_string(totals[first % PERIOD]) + ", \"rank\": " + std::to_string(rank_) + "}";
    }

    static double real(const uint8_t* bytes, const std::string& dtype) {
        uint32_t word = 0;
        std::memcpy(&word, bytes, width_of(dtype));
        if (dtype == "float16") {
            int exponent = (word >> 10) & 31;
            double mantissa = word & 0x3ff, sign = word >> 15 ? -1 : 1;
            return sign * (exponent ? (1024 + mantissa) * std::ldexp(1.0, exponent - 25) : mantissa / 16777216);
        }
        if (dtype == "bfloat16") word <<= 16;
        float value;
        std::memcpy(&value, &word, sizeof value);
        return value == value && value - value == 0 ? value : -1;  // JSON has no NaN
    }

    template <class Call>
    std::string timed(const Step& step, Call call) {
        std::ostringstream out;
        for (int round = 0; round < step.rounds; round++) {
            if (round == step.rounds / 2) strike("timed");
            auto start = std::chrono::steady_clock::now();
            for (int i = 0; i < step.calls; i++) call();
            wait();
            std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - start;
            out << (round ? ", " : "") << spent.count() / step.calls;
        }
        return out.str();
    }

#ifdef PROBE_SYCL
    uint8_t* allocate(size_t bytes) { return sycl::malloc_device<uint8_t>(bytes, queue_); }
    void release(uint8_t* memory) { sycl::free(memory, queue_); }
    void upload(uint8_t* target, const std::vector<uint8_t>& host) {
        queue_.memcpy(target, host.data(), host.size()).wait();
    }
    void download(std::vector<uint8_t>& host, const uint8_t* from) {
        queue_.memcpy(host.data(), from, host.size()).wait();
    }
    void reduce(uint8_t* send, uint8_t* recv, size_t count, ccl::datatype type) {
        ccl::allreduce(send, recv, count, type, ccl::reduction::sum, *comm_, *stream_);
    }
    void wait() { queue_.wait(); }
    sycl::queue queue_;
    std::unique_ptr<ccl::stream> stream_;
#else
    uint8_t* allocate(size_t bytes) { return static_cast<uint8_t*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)); }
    void release(uint8_t* memory) { std::free(memory); }
    void upload(uint8_t* target, const std::vector<uint8_t>& host) { std::memcpy(target, host.data(), host.size()); }
    void download(std::vector<uint8_t>& host, const uint8_t* from) { std::memcpy(host.data(), from, host.size()); }
    void reduce(uint8_t* send, uint8_t* recv, size_t count, ccl::datatype type) {
        ccl::allreduce(send, recv, count, type, ccl::reduction::sum, *comm_).wait();
    }
    void wait() {}
#endif

    int rank_, world_;
    std::unique_ptr<ccl::communicator> comm_;
};

// ---- the library that is loaded -------------------------------------------------------------------------------------

std::string library_path() {
    // Releases from 2022 on map a thin libccl.so.2 beside the library that does the work.
    std::ifstream maps("/proc/self/maps");
    std::string other;
    for (std::string line; std::getline(maps, line);) {
        if (line.find("libccl.so") == std::string::npos) continue;
        if (line.find("libccl.so.1") != std::string::npos) return line.substr(line.find('/'));
        other = line.substr(line.find('/'));
    }
    return other;
}

void hello() {
    auto version = ccl::get_library_version();
    std::string number = std::to_string(version.major) + "." + std::to_string(version.minor) + "." +
                         std::to_string(version.update);
    if (has("version")) number = "0.0.0-other";
    emit("\"event\": \"hello\", \"library\": {\"name\": \"oneCCL\", \"path\": " + json_string(library_path()) +
         ", \"version\": " + json_string(number) + ", \"full\": " + json_string(version.full) + "}, \"dumps\": true");
}

std::vector<Step> read_plan(const char* path) {
    std::vector<Step> steps;
    std::ifstream file(path);
    for (Step step; file >> step.bytes >> step.dtype >> step.form >> step.rounds >> step.calls;) steps.push_back(step);
    return steps;
}

int run(char** arguments) {
    my_rank = std::atoi(arguments[2]);
    int world = std::atoi(arguments[3]);
    fault = parse_fault(arguments[8]);
    enter("start");
    ccl::init();
    hello();
    enter("init");
    Ranks ranks(my_rank, world, arguments[7]);
    auto steps = read_plan(arguments[1]);
    for (size_t i = 0; i < steps.size(); i++) ranks.measure(static_cast<int>(i), steps[i]);
    enter("close");
    emit("\"event\": \"done\"");
    return 0;
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 9) {
        std::fprintf(stderr, "usage: oneccl PLAN RANK WORLD EVENTS_FD PARENT_PID STACK_FILE MEETING_FILE INJECT\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != std::atoi(arguments[5])) return 1;
    signal(SIGINT, SIG_IGN);
    stack_file = arguments[6];
    signal(SIGUSR1, tell);
    events_fd = std::atoi(arguments[4]);
    int result = 1;
    try {
        result = run(arguments);
    } catch (const std::exception& error) {
        emit("\"event\": \"error\", \"kind\": \"exception\", \"text\": " + json_string(error.what()));
        std::fprintf(stderr, "rank %s: %s\n", arguments[2], error.what());
    }
    std::fflush(nullptr);
    _exit(result);  // no destructors: they may wait for ranks that are gone
}
