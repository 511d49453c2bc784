/* Names, attributes and directories: each costs one operation. */
#include "check.h"

#include <dirent.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

int main(int count, char **arguments) {
    struct stat status;
    struct statx more;
    struct statvfs room;
    char name[80], here[4096];
    CHECK(getcwd(here, sizeof here) != NULL);
    int fd = file("file"); /* open 1 */

    CHECK(stat("file", &status) == 0);
    CHECK(lstat("./file", &status) == 0);
    CHECK(fstat(fd, &status) == 0);
    CHECK(fstatat(AT_FDCWD, "file", &status, 0) == 0);
    CHECK(fstatat(fd, "", &status, AT_EMPTY_PATH) == 0);
    CHECK(statx(AT_FDCWD, "file", 0, STATX_SIZE, &more) == 0);
    CHECK(access("../file", F_OK) == -1);
    CHECK(access("file", F_OK) == 0);
    CHECK(statvfs("file", &room) == 0); /* stat 8: one was about another directory */

    CHECK(mkdir("directory", 0700) == 0);
    CHECK(chdir("directory") == 0);
    CHECK(link("../file", "link") == 0);
    CHECK(symlink("../file", "symlink") == 0);
    CHECK(rename("link", "renamed") == 0);
    CHECK(unlink("renamed") == 0);
    CHECK(remove("symlink") == 0);
    for (int index = 0; index < 200; index++) {
        snprintf(name, sizeof name, "%060d", index);
        CHECK(close(openat(AT_FDCWD, name, O_WRONLY | O_CREAT, 0600)) == 0);
    } /* open 201 */
    CHECK(chdir("..") == 0);
    int directory = open("directory", O_RDONLY | O_DIRECTORY); /* open 202 */
    CHECK(faccessat(directory, "nothing", F_OK, 0) == -1); /* stat 9 */
    CHECK(unlinkat(directory, "nothing", 0) == -1); /* link 7 */

    DIR *entries = opendir("directory"); /* open 203 */
    int seen = 0;
    while (readdir(entries) != NULL)
        seen++;
    CHECK(seen == 202);
    CHECK(closedir(entries) == 0); /* list 1: all of them fit into one buffer */

    CHECK(chmod("file", 0644) == 0);
    CHECK(fchmod(fd, 0600) == 0);
    CHECK(utimensat(AT_FDCWD, "file", NULL, 0) == 0);
    CHECK(futimens(fd, NULL) == 0);
    fgetxattr(fd, "user.none", name, sizeof name); /* attribute 5 */
    return 0;
}
