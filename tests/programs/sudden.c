/* Ends in ways that run nothing at the end, each in a child that has written 64 KiB before. */

#define COUNT 65536
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const char block[COUNT];

static void child(const char *name, int how) {
    pid_t pid = how == 4 ? vfork() : fork();
    if (pid == 0) {
        int file = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        if (file < 0 || write(file, block, COUNT) != COUNT) {
            _exit(9);
        }
        switch (how) {
        case 0: _exit(3);
        case 1: raise(SIGKILL); break;
        case 2: syscall(SYS_exit_group, 3);
        case 3: execlp("true", "true", (char *)NULL);
        case 4: _exit(3);
        case 5: abort();
        }
    }
    int status = 0;
    waitpid(pid, &status, 0);
    printf("%s %d\n", name, status);
}

int main(void) {
    const char *names[] = {"exit", "kill", "group", "exec", "vfork", "abort"};
    for (int how = 0; how < 6; how++) {
        fflush(stdout);
        child(names[how], how);
    }
    printf("done\n");
    fflush(stdout);
    getchar();
    return 0;
}
