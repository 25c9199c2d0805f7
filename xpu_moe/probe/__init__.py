"""Measuring tools: is this machine fit, and how fast is it?"""
