/* What threads are called, and what they say about their data: 10 bytes under each name or hint. */
#include "check.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <sys/prctl.h>

static int fd;
static sem_t named, ready;

static void ten(void) { CHECK(write(fd, bytes, 10) == 10); }

static void *worker(void *argument) {
    ten(); /* under the name of its parent */
    sem_post(&ready);
    sem_wait(&named);
    ten();
    return NULL;
}

static void hint(uint64_t value) { CHECK(fcntl(fd, F_SET_RW_HINT, &value) == 0); }

/* As RocksDB does: the other half is whatever the stack had. */
static void half_a_hint(uint32_t value) {
    uint32_t halves[2] = {value, 0x5555};
    errno = 0;
    CHECK(fcntl(fd, F_SET_RW_HINT, halves) == -1 && errno == EINVAL);
}

int main(void) {
    pthread_t thread;
    fd = file("file");
    prctl(PR_SET_NAME, "first");
    ten();
    CHECK(pthread_setname_np(pthread_self(), "second") == 0);
    ten();
    sem_init(&named, 0, 0);
    sem_init(&ready, 0, 0);
    CHECK(pthread_create(&thread, NULL, worker, NULL) == 0);
    sem_wait(&ready);
    CHECK(pthread_setname_np(thread, "third") == 0);
    sem_post(&named);
    CHECK(pthread_join(thread, NULL) == 0);
    /* second: 20 bytes; first and third: 10 */

    prctl(PR_SET_NAME, "hints");
    hint(RWH_WRITE_LIFE_LONG);
    ten();
    CHECK(pread(fd, bytes, 5, 0) == 5);
    hint(RWH_WRITE_LIFE_SHORT);
    ten();
    hint(RWH_WRITE_LIFE_NOT_SET);
    ten();
    half_a_hint(RWH_WRITE_LIFE_MEDIUM);
    ten();
    CHECK(fcntl(fd, F_SET_RW_HINT, NULL) == -1 && errno == EFAULT);
    ten();
    return 0;
}
