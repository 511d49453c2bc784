// RocksDB's rate limiter as a contestant of `tidegate-lab bench`: see child.rs for what it is asked.
#include <rocksdb/rate_limiter.h>
#include <sched.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

using Clock = std::chrono::steady_clock;

// How often the thread was taken off its core, and how long it waited to get back.
static std::pair<long, long> standing() {
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    long ran = 0, delayed = 0;
    std::ifstream("/proc/thread-self/schedstat") >> ran >> delayed;
    return {usage.ru_nivcsw, delayed};
}

int main() {
    // 4 TB/s in intervals of 100 ms: nobody waits.
    std::unique_ptr<rocksdb::RateLimiter> limiter(rocksdb::NewGenericRateLimiter(
        4'000'000'000'000, 100'000, 10, rocksdb::RateLimiter::Mode::kAllIo));
    std::string line;
    while (std::getline(std::cin, line)) {
        std::istringstream words(line);
        long length = 0, core = 0;
        std::vector<long> cores;
        for (words >> length; words >> core;) cores.push_back(core);
        std::vector<std::thread> threads;
        std::vector<double> rates(cores.size());
        std::atomic<int> missing(static_cast<int>(cores.size()));
        std::atomic<bool> disturbed(false);
        for (size_t i = 0; i < cores.size(); i++) {
            threads.emplace_back([&, i] {
                cpu_set_t set;
                CPU_ZERO(&set);
                CPU_SET(cores[i], &set);
                sched_setaffinity(0, sizeof set, &set);
                auto block = [&] {
                    for (int call = 0; call < 256; call++)
                        limiter->Request(4096, rocksdb::Env::IO_LOW, nullptr);
                };
                block();
                const auto before = standing();
                for (missing--; missing > 0;) sched_yield();
                const auto begin = Clock::now();
                double calls = 0, took = 0;
                for (; took < length; calls += 256) {
                    block();
                    took = std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
                }
                const auto after = standing();
                rates[i] = calls / took;
                // Threads that wait for each other's lock are woken up, and what that takes counts
                // as waiting for a core.
                const long allowed = length / (cores.size() > 1 ? 4 : 100);
                if (after.first != before.first || after.second - before.second > allowed)
                    disturbed = true;
            });
        }
        double rate = 0;
        for (auto &thread : threads) thread.join();
        for (double one : rates) rate += one;
        if (disturbed) {
            std::puts("-");
        } else {
            std::printf("%.3f\n", static_cast<double>(cores.size()) / rate);
        }
        std::fflush(stdout);
    }
}
