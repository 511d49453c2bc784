/* Forbids itself nearly everything, as sandboxes do, and then writes a megabyte: `filtered [HOW]`.
 * Nothing is written before, so that the file is not known yet when it is forbidden to ask.
 *
 *     (nothing)   read, write, sleep on a futex, and end
 *     no-sleep    read, write, and end
 *     strict      the same by the kernel's own strict mode
 */

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ALLOW(number)                                                   \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 1),                \
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static char block[65536];

int main(int count, char **arguments) {
    const char *how = count > 1 ? arguments[1] : "";
    int strict = strcmp(how, "strict") == 0;
    /* What `exit` is called where sleeping is not allowed either: it stands in for the futex. */
    int sleep = strcmp(how, "no-sleep") == 0 ? SYS_exit : SYS_futex;
    int file = open("filtered", O_WRONLY | O_CREAT | O_TRUNC, 0644);
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(SYS_write),
        ALLOW(SYS_read),
        ALLOW(sleep),
        ALLOW(SYS_exit_group),
        /* Anything else ends the program. */
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof steps / sizeof *steps, steps};
    if (file < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
        || (strict ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)
                   : prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) != 0) {
        return 77;
    }
    for (int round = 0; round < 16; round++) {
        if (write(file, block, sizeof block) != sizeof block) {
            return 9;
        }
    }
    write(1, "done\n", 5);
    char byte;
    read(0, &byte, 1);
    /* The only end that strict mode knows. */
    syscall(strict ? SYS_exit : SYS_exit_group, 0);
}
