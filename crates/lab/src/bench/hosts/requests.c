/* The program of one stage in `tidegate-lab bench hosts`: reads 4 KiB at a time from the page cache.
 *
 * Arguments: the board, the stage's number, and the file to read. The board is a file that all
 * programs map, with three words for each stage. The bench writes the first (0: no requests, 1:
 * requests without a pause, 2: end), and the program the others: whether it has begun, and the bytes
 * that it has read. */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define BLOCK 4096
#define BLOCKS 16
#define WORDS 3

int main(int count, char **arguments) {
    static char block[BLOCK];
    /* An idle program checks its order every two milliseconds. */
    const struct timespec pause = { 0, 2000000 };
    uint64_t *words, order, number, next = 0;
    int board, file;
    off_t length;
    void *mapped;
    if (count != 4) {
        return 2;
    }
    board = open(arguments[1], O_RDWR);
    file = open(arguments[3], O_RDONLY);
    length = board < 0 ? -1 : lseek(board, 0, SEEK_END);
    if (length < 0 || file < 0) {
        return 3;
    }
    number = strtoull(arguments[2], NULL, 10);
    mapped = mmap(NULL, (size_t)length, PROT_READ | PROT_WRITE, MAP_SHARED, board, 0);
    if (mapped == MAP_FAILED || (number + 1) * WORDS * sizeof *words > (uint64_t)length) {
        return 4;
    }
    words = (uint64_t *)mapped + number * WORDS;
    __atomic_store_n(&words[1], 1, __ATOMIC_RELEASE);
    while ((order = __atomic_load_n(&words[0], __ATOMIC_ACQUIRE)) != 2) {
        if (order == 0) {
            nanosleep(&pause, NULL);
            continue;
        }
        if (pread(file, block, BLOCK, (off_t)(next++ % BLOCKS) * BLOCK) != BLOCK) {
            return 5;
        }
        __atomic_fetch_add(&words[2], BLOCK, __ATOMIC_RELAXED);
    }
    return 0;
}
