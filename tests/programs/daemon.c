/* A daemon of the old school: forks twice, leads a session, closes everything, and overwrites its
 * environment, as programs do that set their title. Then it writes until it is ended. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

int main(void)
{
    static char block[65536];
    char **variable;
    int file, rounds, number;

    if (fork() != 0)
        _exit(0);
    setsid();
    if (fork() != 0)
        _exit(0);
    for (number = 0; number < 1024; number++)
        close(number);
    for (variable = environ; *variable != NULL; variable++)
        memset(*variable, 0, strlen(*variable));
    number = open("pid", O_CREAT | O_WRONLY, 0600);
    dprintf(number, "%d\n", (int)getpid());
    close(number);
    file = open("file", O_CREAT | O_WRONLY, 0600);
    rounds = open("rounds", O_CREAT | O_WRONLY | O_APPEND, 0600);
    for (;;) {
        if (pwrite(file, block, sizeof(block), 0) < 0 || write(rounds, "\n", 1) < 0)
            _exit(1);
        usleep(10000);
    }
}
