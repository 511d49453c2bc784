/* A child of fork() and the stage of its parent. Says what went how; header.rs knows what is right. */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tidegate.h>

static int set_gate(tidegate_stage *stage, const char *name) {
    tidegate_gate gate;
    memset(&gate, 0, sizeof gate);
    gate.size = sizeof gate;
    gate.kind = TIDEGATE_GATE_OPEN;
    return tidegate_set_gate(stage, name, &gate);
}

int main(void) {
    tidegate_settings settings;
    tidegate_stage *stage;
    int status = 0;
    memset(&settings, 0, sizeof settings);
    settings.size = sizeof settings;
    settings.socket = "/nonexistent/controller.sock";
    printf("open: %s\n", tidegate_strerror(tidegate_stage_open(&settings, &stage)));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        tidegate_admission admission;
        alarm(20); /* ends a child that hangs */
        printf("child enforces: %s\n",
               tidegate_strerror(tidegate_enforce(stage, TIDEGATE_READ, 1, NULL, &admission)));
        printf("child completes: %s\n", tidegate_strerror(tidegate_complete(&admission, 1)));
        printf("child sets a gate: %s\n", tidegate_strerror(set_gate(stage, "g")));
        printf("because it was %s\n",
               strstr(tidegate_error_detail(), "forked") ? "forked" : tidegate_error_detail());
        printf("child clears: %s\n", tidegate_strerror(tidegate_clear_rules(stage)));
        printf("child closes: %s\n", tidegate_strerror(tidegate_stage_close(stage)));
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, &status, 0);
    printf("child ended: %d\n", status);
    printf("parent sets a gate: %s\n", tidegate_strerror(set_gate(stage, "h")));
    printf("parent closes: %s\n", tidegate_strerror(tidegate_stage_close(stage)));
    return 0;
}
