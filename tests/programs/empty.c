/* Starts a program in an environment with nothing in it. */

#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>

int main(int count, char **arguments) {
    char *nothing[] = {NULL};
    pid_t pid;
    int status = 0;
    if (count < 2 || posix_spawn(&pid, arguments[1], NULL, NULL, arguments + 1, nothing) != 0) {
        return 1;
    }
    waitpid(pid, &status, 0);
    return WEXITSTATUS(status);
}
