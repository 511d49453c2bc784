/* Starts a program in several ways and says what it printed.
 *
 *     starter HOW PROGRAM     HOW: spawn, spawn-empty, execv, execve-empty, vfork, closed
 */
#include "check.h"

#include <spawn.h>

extern char **environ;

int main(int count, char **arguments) {
    char *how = arguments[1], *program = arguments[2];
    char *its[] = {program, NULL}, *empty[] = {NULL};
    pid_t child;
    int status;
    if (strcmp(how, "spawn") == 0) {
        CHECK(posix_spawn(&child, program, NULL, NULL, its, environ) == 0);
    } else if (strcmp(how, "spawn-empty") == 0) {
        CHECK(posix_spawn(&child, program, NULL, NULL, its, empty) == 0);
    } else if (strcmp(how, "execv") == 0) {
        CHECK(execv(program, its) == 0);
    } else if (strcmp(how, "execve-empty") == 0) {
        CHECK(execve(program, its, empty) == 0);
    } else if (strcmp(how, "vfork") == 0) {
        child = vfork();
        if (child == 0) {
            execv(program, its);
            _exit(1);
        }
    } else {
        closefrom(0);
        execv(program, its);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return 0;
}
