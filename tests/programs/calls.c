/* Moves COUNT bytes by each way that a C program has, to or from a file that bears its name.
 *
 *     calls FOLDER
 *
 * The folder has a file NAME.in of COUNT bytes for every way to read. Each way is one function in
 * the table at the end. */

#include <aio.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define COUNT (256 * 1024)
#define PIECE (16 * 1024)

static char piece[PIECE];

static void check(int good, const char *what) {
    if (!good) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        exit(1);
    }
}

typedef ssize_t (*mover)(int file, off_t at);

static ssize_t by_write(int file, off_t at) { (void)at; return write(file, piece, PIECE); }
static ssize_t by_pwrite(int file, off_t at) { return pwrite(file, piece, PIECE, at); }
static ssize_t by_pwrite64(int file, off_t at) { return pwrite64(file, piece, PIECE, at); }
static ssize_t by_read(int file, off_t at) { (void)at; return read(file, piece, PIECE); }
static ssize_t by_pread(int file, off_t at) { return pread(file, piece, PIECE, at); }
static ssize_t by_pread64(int file, off_t at) { return pread64(file, piece, PIECE, at); }

static const struct iovec *halves(void) {
    static struct iovec halves[2];
    halves[0] = (struct iovec){piece, 100};
    halves[1] = (struct iovec){piece + 100, PIECE - 100};
    return halves;
}

static ssize_t by_writev(int file, off_t at) { (void)at; return writev(file, halves(), 2); }
static ssize_t by_pwritev(int file, off_t at) { return pwritev(file, halves(), 2, at); }
static ssize_t by_pwritev2(int file, off_t at) { return pwritev2(file, halves(), 2, at, 0); }
static ssize_t by_readv(int file, off_t at) { (void)at; return readv(file, halves(), 2); }
static ssize_t by_preadv(int file, off_t at) { return preadv(file, halves(), 2, at); }
static ssize_t by_preadv2(int file, off_t at) { return preadv2(file, halves(), 2, at, 0); }

static ssize_t by_dprintf(int file, off_t at) {
    (void)at;
    return dprintf(file, "%*d", PIECE, 7);
}

static ssize_t by_syscall(int file, off_t at) {
    (void)at;
    return syscall(SYS_write, file, piece, PIECE);
}

static ssize_t by_aio(int file, off_t at, int is_read) {
    struct aiocb request = {0};
    const struct aiocb *list[] = {&request};
    request.aio_fildes = file;
    request.aio_buf = piece;
    request.aio_nbytes = PIECE;
    request.aio_offset = at;
    check((is_read ? aio_read(&request) : aio_write(&request)) == 0, "aio");
    while (aio_error(&request) == EINPROGRESS) {
        aio_suspend(list, 1, NULL);
    }
    return aio_return(&request);
}

static ssize_t by_aio_write(int file, off_t at) { return by_aio(file, at, 0); }
static ssize_t by_aio_read(int file, off_t at) { return by_aio(file, at, 1); }

static ssize_t by_lio_listio(int file, off_t at) {
    struct aiocb halves[2] = {{0}, {0}};
    struct aiocb *list[] = {&halves[0], &halves[1]};
    for (int half = 0; half < 2; half++) {
        halves[half].aio_fildes = file;
        halves[half].aio_buf = piece;
        halves[half].aio_nbytes = PIECE / 2;
        halves[half].aio_offset = at + half * (PIECE / 2);
        halves[half].aio_lio_opcode = LIO_WRITE;
    }
    check(lio_listio(LIO_WAIT, list, 2, NULL) == 0, "lio_listio");
    return aio_return(&halves[0]) + aio_return(&halves[1]);
}

static ssize_t by_splice(int file, off_t at) {
    static int pipe_ends[2];
    (void)at;
    if (pipe_ends[1] == 0) {
        check(pipe(pipe_ends) == 0, "pipe");
    }
    check(write(pipe_ends[1], piece, PIECE) == PIECE, "write to a pipe");
    return splice(pipe_ends[0], NULL, file, NULL, PIECE, 0);
}

/* What is copied comes from a file that is no tenant's. */
static int source;

static ssize_t by_sendfile(int file, off_t at) { return sendfile(file, source, &at, PIECE); }

static ssize_t by_copy_file_range(int file, off_t at) {
    off_t from = at;
    return copy_file_range(source, &from, file, &at, PIECE, 0);
}

static FILE *stream;

static ssize_t by_fwrite(int file, off_t at) {
    (void)file, (void)at;
    return (ssize_t)fwrite(piece, 1, PIECE, stream);
}

static ssize_t by_fwrite_unlocked(int file, off_t at) {
    (void)file, (void)at;
    return (ssize_t)fwrite_unlocked(piece, 1, PIECE, stream);
}

static ssize_t by_fputs(int file, off_t at) {
    static char text[PIECE + 1];
    (void)file, (void)at;
    memset(text, 'x', PIECE);
    return fputs(text, stream) < 0 ? -1 : PIECE;
}

static ssize_t by_putc(int file, off_t at) {
    (void)file, (void)at;
    for (int byte = 0; byte < PIECE; byte++) {
        if (putc('x', stream) == EOF) {
            return -1;
        }
    }
    return PIECE;
}

static ssize_t by_fprintf(int file, off_t at) {
    (void)file, (void)at;
    return fprintf(stream, "%*d", PIECE, 7);
}

static ssize_t by_fread(int file, off_t at) {
    (void)file, (void)at;
    return (ssize_t)fread(piece, 1, PIECE, stream);
}

static ssize_t by_getc(int file, off_t at) {
    (void)file, (void)at;
    for (int byte = 0; byte < PIECE; byte++) {
        if (getc(stream) == EOF) {
            return -1;
        }
    }
    return PIECE;
}

static ssize_t by_fgets(int file, off_t at) {
    ssize_t count = 0;
    (void)file, (void)at;
    /* Lines of 64 bytes, as the files for reading have. */
    while (count < PIECE && fgets(piece, PIECE, stream) != NULL) {
        count += (ssize_t)strlen(piece);
    }
    return count;
}

static ssize_t by_getline(int file, off_t at) {
    static char *line;
    static size_t size;
    ssize_t count = 0;
    (void)file, (void)at;
    while (count < PIECE) {
        ssize_t length = getline(&line, &size, stream);
        if (length < 0) {
            break;
        }
        count += length;
    }
    return count;
}

static const struct {
    const char *name;
    mover move;
    int reads, streams;
} calls[] = {
    {"write", by_write, 0, 0},
    {"pwrite", by_pwrite, 0, 0},
    {"pwrite64", by_pwrite64, 0, 0},
    {"writev", by_writev, 0, 0},
    {"pwritev", by_pwritev, 0, 0},
    {"pwritev2", by_pwritev2, 0, 0},
    {"dprintf", by_dprintf, 0, 0},
    {"syscall", by_syscall, 0, 0},
    {"aio_write", by_aio_write, 0, 0},
    {"lio_listio", by_lio_listio, 0, 0},
    {"splice", by_splice, 0, 0},
    {"sendfile", by_sendfile, 0, 0},
    {"copy_file_range", by_copy_file_range, 0, 0},
    {"fwrite", by_fwrite, 0, 1},
    {"fwrite_unlocked", by_fwrite_unlocked, 0, 1},
    {"fputs", by_fputs, 0, 1},
    {"putc", by_putc, 0, 1},
    {"fprintf", by_fprintf, 0, 1},
    {"read", by_read, 1, 0},
    {"pread", by_pread, 1, 0},
    {"pread64", by_pread64, 1, 0},
    {"readv", by_readv, 1, 0},
    {"preadv", by_preadv, 1, 0},
    {"preadv2", by_preadv2, 1, 0},
    {"aio_read", by_aio_read, 1, 0},
    {"fread", by_fread, 1, 1},
    {"getc", by_getc, 1, 1},
    {"fgets", by_fgets, 1, 1},
    {"getline", by_getline, 1, 1},
};

static void run(const char *name, mover move, int reads, int streams) {
    int file = open(name, reads ? O_RDONLY : O_RDWR | O_CREAT | O_TRUNC, 0644);
    check(file >= 0, name);
    stream = streams ? fdopen(file, reads ? "r" : "w") : NULL;
    check(!streams || stream != NULL, name);
    for (off_t at = 0; at < COUNT; at += PIECE) {
        check(move(file, at) == PIECE, name);
    }
    check((streams ? fclose(stream) : close(file)) == 0, name);
}

int main(int count, char **arguments) {
    check(count == 2 && chdir(arguments[1]) == 0, "chdir");
    memset(piece, 'x', PIECE);
    source = open("../source", O_RDONLY);
    check(source >= 0, "source");
    for (size_t at = 0; at < sizeof calls / sizeof *calls; at++) {
        run(calls[at].name, calls[at].move, calls[at].reads, calls[at].streams);
    }
    /* Stays until somebody has read the counters. */
    printf("done\n");
    fflush(stdout);
    getchar();
    return 0;
}
