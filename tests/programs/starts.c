/* Starts a program in every way that the C library has. Each run is given its own argument, and what
 * came of it is a line: the way, and the exit status or the error. */

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static const char *program;
static char mark[64];
static char *arguments[3];

/* Runs in a child; returns if the program was not started. */
static void replace(const char *way) {
    char *folder = strdup(program), *name = strrchr(folder, '/') + 1;
    name[-1] = 0;
    if (strcmp(way, "execv") == 0) {
        execv(program, arguments);
    } else if (strcmp(way, "execve") == 0) {
        execve(program, arguments, environ);
    } else if (strcmp(way, "execvp") == 0) {
        execvp(program, arguments);
    } else if (strcmp(way, "execvpe") == 0) {
        execvpe(program, arguments, environ);
    } else if (strcmp(way, "execl") == 0) {
        execl(program, program, mark, NULL);
    } else if (strcmp(way, "execlp") == 0) {
        execlp(program, program, mark, "3", "4", "5", "6", "7", "8", NULL);
    } else if (strcmp(way, "execle") == 0) {
        execle(program, program, mark, "3", "4", "5", "6", "7", "8", NULL, environ);
    } else if (strcmp(way, "execveat") == 0) {
        execveat(open(folder, O_PATH), name, arguments, environ, 0);
    } else if (strcmp(way, "fexecve") == 0) {
        fexecve(open(program, O_RDONLY), arguments, environ);
    } else if (strcmp(way, "syscall") == 0) {
        syscall(SYS_execve, program, arguments, environ);
    }
}

static int spawned(const char *way) {
    char command[4096];
    FILE *pipe;
    pid_t pid;
    int status = -1, error;

    snprintf(command, sizeof(command), "exec %s %s", program, mark);
    if (strcmp(way, "system") == 0) {
        status = system(command);
        return status < 0 ? -errno : WEXITSTATUS(status);
    }
    if (strcmp(way, "popen") == 0) {
        pipe = popen(command, "r");
        return pipe == NULL ? -errno : WEXITSTATUS(pclose(pipe));
    }
    if (strncmp(way, "posix_spawn", 11) == 0) {
        if (way[11] == 'p') {
            error = posix_spawnp(&pid, program, NULL, NULL, arguments, environ);
        } else {
            error = posix_spawn(&pid, program, NULL, NULL, arguments, environ);
        }
        if (error != 0) {
            return -error;
        }
    } else if (strcmp(way, "vfork") == 0) {
        pid = vfork();
        if (pid == 0) {
            execve(program, arguments, environ);
            _exit(100 + errno);
        }
    } else {
        pid = fork();
        if (pid == 0) {
            replace(way);
            _exit(100 + errno);
        }
    }
    waitpid(pid, &status, 0);
    return WEXITSTATUS(status) > 100 ? 100 - WEXITSTATUS(status) : WEXITSTATUS(status);
}

int main(int count, char **given) {
    static const char *const ways[] = {
        "execv", "execve", "execvp", "execvpe", "execl", "execlp", "execle", "execveat",
        "fexecve", "syscall", "vfork", "posix_spawn", "posix_spawnp", "system", "popen",
    };
    size_t way;

    if (count < 2) {
        return 2;
    }
    program = given[1];
    if (count > 2) {
        clearenv();
        setenv("PATH", "/usr/bin:/bin", 1);
    }
    arguments[0] = given[1];
    arguments[1] = mark;
    for (way = 0; way < sizeof(ways) / sizeof(ways[0]); way++) {
        int result;

        snprintf(mark, sizeof(mark), "mark-%s", ways[way]);
        result = spawned(ways[way]);
        if (result < 0) {
            printf("%s: %s\n", ways[way], strerror(-result));
        } else {
            printf("%s: %d\n", ways[way], result);
        }
        fflush(stdout);
    }
    return 0;
}
