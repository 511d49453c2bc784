/* How much of a signal's stack a call takes: for each call a line with its name and the bytes of the
 * alternate stack that were written to while a handler made it. */
#include "check.h"

#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { SIZE = 256 << 10, PAINT = 0x5a };

static unsigned char *stack;
static void (*volatile call)(void);
static int fd, ends[2];
static char longest[3900];
static char *many[2000];

static void nothing(void) {}
static void reads(void) { read(fd, bytes, 10); }
static void writes(void) { write(fd, bytes, 10); }
static void preads(void) { pread(fd, bytes, 10, 0); }
static void readvs(void) {
    struct iovec two[2] = {{bytes, 1}, {bytes, 2}};
    readv(fd, two, 2);
}
static void pipes(void) { write(ends[1], bytes, 10); }
static void fsyncs(void) { fsync(fd); }
static void ftruncates(void) { ftruncate(fd, 10); }
static void fresh(void) {
    /* Its descriptor is not known yet. */
    int other = dup(fd);
    write(other, bytes, 10);
    close(other);
}
static void opens(void) { close(open("file", O_RDWR)); }
static void opens_absolute(void) { close(open("/nowhere/in/particular", O_RDWR)); }
static void opens_long(void) { close(open(longest, O_RDWR)); }
static void stats(void) {
    struct stat status;
    stat("file", &status);
}
static void fstats(void) {
    struct stat status;
    fstat(fd, &status);
}
static void links(void) { link("file", "nowhere/file"); }
static void renames(void) { rename("no-file", "file"); }
static void unlinks(void) { unlink("no-file"); }
static void mkdirs(void) { mkdir("nowhere/folder", 0700); }
static void starts(void) {
    /* Neither of them starts. */
    char *arguments[] = {"false", NULL};
    execve("file", arguments, many);
    execv("/nowhere/false", arguments);
}
static void starts_by_name(void) {
    char *arguments[] = {"false", NULL};
    execvp("no-such-program-anywhere", arguments);
}
static void forks(void) {
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0);
}

static void handler(int number) { call(); }

static size_t used(void (*by)(void)) {
    size_t untouched = 0;
    memset(stack, PAINT, SIZE);
    call = by;
    raise(SIGUSR1);
    while (stack[untouched] == PAINT)
        untouched++;
    return SIZE - untouched;
}

#define SHOW(by) printf("%s %zu\n", #by, used(by) - base)

int main(void) {
    stack_t alternate = {.ss_size = SIZE};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    size_t base, index;

    stack = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stack != MAP_FAILED);
    alternate.ss_sp = stack;
    CHECK(sigaltstack(&alternate, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
    fd = file("file");
    CHECK(pipe(ends) == 0);
    memset(longest, 'a', sizeof longest - 1);
    for (index = 0; index < sizeof longest - 1; index += 100)
        longest[index] = '/';
    for (index = 0; index < 1999; index++)
        many[index] = "A=1";
    used(nothing);
    base = used(nothing);
    SHOW(reads);
    SHOW(writes);
    SHOW(preads);
    SHOW(readvs);
    SHOW(pipes);
    SHOW(fsyncs);
    SHOW(ftruncates);
    SHOW(fresh);
    SHOW(opens);
    SHOW(opens_absolute);
    SHOW(opens_long);
    SHOW(stats);
    SHOW(fstats);
    SHOW(links);
    SHOW(renames);
    SHOW(unlinks);
    SHOW(mkdirs);
    SHOW(forks);
    SHOW(starts);
    SHOW(starts_by_name);
    return 0;
}
