/* Runs programs for `tidegate-lab bench programs`, and says how long each took: see programs.rs.
 *
 * Arguments: the shim, the name of the variable that names the segment, and the segment. Each line
 * of input is `+` or `-`, for with or without the shim, a directory, and a program to run there with
 * its arguments, each behind a unit separator. The answer is nanoseconds from start to end and nanoseconds of processor
 * time, its children's included; or `!` and the exit code. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WORDS 64

extern char **environ;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static double nanoseconds(struct timeval time) {
    return (double)time.tv_sec * 1e9 + (double)time.tv_usec * 1e3;
}

int main(int count, char **arguments) {
    static char line[65536];
    posix_spawn_file_actions_t actions;
    if (count != 4) {
        return 2;
    }
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    while (fgets(line, sizeof line, stdin) != NULL) {
        char *words[WORDS], *rest = line + 1, *word;
        int number = 0, status = 0, error;
        struct rusage usage;
        double begin, end;
        pid_t child;
        line[strcspn(line, "\n")] = 0;
        while (number < WORDS - 1 && (word = strsep(&rest, "\x1f")) != NULL) {
            if (*word != 0) {
                words[number++] = word;
            }
        }
        words[number] = NULL;
        /* The loader reads these when a program starts, so they change nothing for this one. */
        if (*line == '+') {
            setenv("LD_PRELOAD", arguments[1], 1);
            setenv(arguments[2], arguments[3], 1);
        } else {
            unsetenv("LD_PRELOAD");
            unsetenv(arguments[2]);
        }
        error = number < 2 || chdir(words[0]) != 0;
        begin = now();
        if (error == 0) {
            error = posix_spawnp(&child, words[1], &actions, NULL, words + 1, environ);
        }
        if (error == 0 && wait4(child, &status, 0, &usage) == child && status == 0) {
            end = now();
            printf("%.0f %.0f\n", end - begin,
                   nanoseconds(usage.ru_utime) + nanoseconds(usage.ru_stime));
        } else {
            printf("! %d\n", error != 0 ? 127 : WEXITSTATUS(status));
        }
        fflush(stdout);
    }
    return 0;
}
