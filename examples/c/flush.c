/* A program that writes in two contexts: flushes are held to 8 MiB/s, everything else is not.
 *
 * From the root of the repository:
 *   cargo build --release -p tidegate-capi
 *   cc -Iinclude examples/c/flush.c -Ltarget/release -ltidegate -Wl,-rpath,$PWD/target/release
 *   ./a.out
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tidegate.h>

/* Ends the program if a call did not go well. */
static void must(int status) {
    if (status != TIDEGATE_OK) {
        fprintf(stderr, "%s: %s\n", tidegate_strerror(status), tidegate_error_detail());
        exit(1);
    }
}

/* Rules of our own; with a controller, its policy would say this. */
static void set_rules(tidegate_stage *stage) {
    tidegate_gate slow = {sizeof slow, TIDEGATE_GATE_BYTES, 0, 8 << 20, 64 << 10, 0, NULL};
    tidegate_rule flushes = {sizeof flushes, 0, 0, 0, "flush", NULL, NULL};
    const char *gates[] = {"slow"};
    must(tidegate_set_gate(stage, "slow", &slow));
    must(tidegate_set_channel(stage, "flush", 1, TIDEGATE_LOW, gates, 1));
    must(tidegate_set_channel(stage, "foreground", 1, TIDEGATE_HIGH, NULL, 0));
    must(tidegate_add_rule(stage, &flushes, "flush"));
    must(tidegate_set_default(stage, "foreground"));
}

static void write_through(tidegate_stage *stage, FILE *file, const char *block, size_t length) {
    tidegate_admission admission;
    must(tidegate_enforce(stage, TIDEGATE_WRITE, length, NULL, &admission));
    must(tidegate_complete(&admission, fwrite(block, 1, length, file)));
}

int main(void) {
    static char block[64 << 10];
    static const char *const names[] = {"flush", "foreground"};
    tidegate_settings settings;
    tidegate_stage *stage;
    tidegate_counters counters[2];
    size_t count, channel;
    int i;
    FILE *file = tmpfile();

    memset(&settings, 0, sizeof settings);
    settings.size = sizeof settings;
    settings.socket = "/nonexistent/controller.sock";
    must(tidegate_stage_open(&settings, &stage));
    set_rules(stage);

    for (i = 0; file != NULL && i < 16; i++) {
        uint16_t previous = tidegate_scope_enter("flush");
        write_through(stage, file, block, sizeof block);
        tidegate_scope_leave(previous);
        write_through(stage, file, block, 4096);
    }

    must(tidegate_collect(stage, counters, 2, &count));
    for (channel = 0; channel < count; channel++) {
        printf("%s: %" PRIu64 " requests, %" PRIu64 " bytes, %s\n",
               names[counters[channel].channel], counters[channel].operations,
               counters[channel].bytes, counters[channel].waited_ns > 0 ? "waited"
                                                      : "did not wait");
    }
    must(tidegate_stage_close(stage));
    return 0;
}
