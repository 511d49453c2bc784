/* Libraries that are opened while the program runs: `loading HOW LIBRARY`, and, built with
 * -DLIBRARY, the library itself. No case may do before what another wants to be the first to do. */
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>

#ifdef LIBRARY

static void *reads(void *unused) {
    char byte;
    int fd = file("file");
    CHECK(pwrite(fd, bytes, 10, 0) == 10 && pread(fd, &byte, 1, 0) == 1);
    return NULL;
}

/* Whoever opens this library waits for a thread, and holds the loader's lock meanwhile. */
__attribute__((constructor)) static void waits(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, reads, NULL) == 0 && pthread_join(thread, NULL) == 0);
}

#else

static void *nothing(void *unused) { return NULL; }

int main(int count, char **arguments) {
    const char *how = arguments[1];
    if (strcmp(how, "thread") == 0) {
        CHECK(dlopen(arguments[2], RTLD_NOW) != NULL);
    } else if (strcmp(how, "error") == 0) {
        CHECK(dlopen("/no/such/library", RTLD_NOW) == NULL);
        /* What the shim does for its own sake must not take the error away. */
        int fd = file("file");
        CHECK(write(fd, bytes, 10) == 10 && fsync(fd) == 0 && fflush(NULL) == 0);
        CHECK(dlerror() != NULL);
    } else if (strcmp(how, "late") == 0) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, nothing, NULL) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        CHECK(waitpid(child, NULL, 0) == child);
        /* The shim stands in front of a library that is loaded only now. */
        int (*submit)(void *, long, void **) = dlsym(RTLD_DEFAULT, "io_submit");
        CHECK(submit != NULL && submit(NULL, 0, NULL) == -ENOSYS);
        void *library = dlopen("libaio.so.1", RTLD_NOW | RTLD_GLOBAL);
        if (library == NULL)
            _exit(77);
        int (*setup)(int, void **) = dlsym(library, "io_setup");
        void *context = NULL;
        CHECK(setup(1, &context) == 0);
        CHECK(submit(context, 0, NULL) == 0);
    }
    return 0;
}

#endif
