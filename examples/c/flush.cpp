/* A program that writes in two contexts: flushes are held to 8 MiB/s, everything else is not.
 *
 * From the root of the repository:
 *   cargo build --release -p tidegate-capi
 *   c++ -std=c++17 -Iinclude examples/c/flush.cpp -Ltarget/release -ltidegate \
 *       -Wl,-rpath,$PWD/target/release
 *   ./a.out
 */
#include <cstdio>
#include <iostream>
#include <tidegate.hpp>
#include <vector>

// Rules of our own; with a controller, its policy would say this.
static tidegate::Status set_rules(const tidegate::Stage &stage) {
    auto slow = tidegate::sized<tidegate_gate>();
    slow.kind = TIDEGATE_GATE_BYTES;
    slow.rate = 8 << 20;
    slow.burst = 64 << 10;
    auto flushes = tidegate::sized<tidegate_rule>();
    flushes.context = "flush";
    if (auto status = stage.set_gate("slow", slow); !status) {
        return status;
    }
    if (auto status = stage.set_channel("flush", 1, TIDEGATE_LOW, {"slow"}); !status) {
        return status;
    }
    if (auto status = stage.set_channel("foreground", 1, TIDEGATE_HIGH, {}); !status) {
        return status;
    }
    if (auto status = stage.add_rule(flushes, "flush"); !status) {
        return status;
    }
    return stage.set_default("foreground");
}

static void write_through(const tidegate::Stage &stage, std::FILE *file,
                          const std::vector<char> &block) {
    auto admission = stage.enforce(TIDEGATE_WRITE, block.size());
    (void)admission.complete(std::fwrite(block.data(), 1, block.size(), file));
}

int main() try {
    auto settings = tidegate::sized<tidegate_settings>();
    settings.socket = "/nonexistent/controller.sock";
    const tidegate::Stage stage(settings);
    if (auto status = set_rules(stage); !status) {
        throw tidegate::Error(status);
    }
    std::FILE *file = std::tmpfile();
    const std::vector<char> large(64 << 10), small(4 << 10);
    for (int i = 0; file != nullptr && i < 16; i++) {
        {
            tidegate::Scope scope("flush");
            write_through(stage, file, large);
        }
        write_through(stage, file, small);
    }
    tidegate_counters counters[2];
    std::size_t count = 0;
    if (auto status = stage.collect(counters, 2, count); !status) {
        throw tidegate::Error(status);
    }
    for (std::size_t i = 0; i < count; i++) {
        const auto &[channel, reserved, operations, bytes, waited] = counters[i];
        std::cout << (channel == 0 ? "flush: " : "foreground: ") << operations << " requests, "
                  << bytes << " bytes, " << (waited > 0 ? "waited" : "did not wait") << '\n';
        (void)reserved;
    }
} catch (const tidegate::Error &error) {
    std::cerr << error.what() << '\n';
    return 1;
}
