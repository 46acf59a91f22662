/* A disk that fails, for one file: preloaded into the program under test.
 *
 * What the program writes goes into the file, which stands for the page cache. What a disk would hold is remembered
 * beside it, page by page: a page that is written is DIRTY and its old content is saved. A sync that works makes all
 * DIRTY pages SAME. One that fails does what Linux does: it says so once and calls the pages clean, although the disk
 * has the old content; they are LOST unless they are written again. All of it is in shared mappings, so that it is
 * there after SIGKILL; then run/disk.rs can put back what a disk would hold after power loss.
 *
 * LAB_DISK_FILE names the file, LAB_DISK_STATE a directory for what is remembered.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 1 << 17 };
enum { SAME, DIRTY, LOST };

/* As run/disk.rs reads and writes it. */
struct control {
    uint32_t fail_syncs; /* how many syncs are to fail from now on */
    uint32_t failed;     /* how many have failed */
    uint32_t pages;      /* pages after this one are SAME */
    uint32_t spare;
    uint8_t state[PAGES];
};

static struct control *control;
static int platter = -1;
static const char *path;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ssize_t (*real_pwrite)(int, const void *, size_t, off64_t);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);

__attribute__((constructor)) static void start(void) {
    char name[4096];
    const char *directory = getenv("LAB_DISK_STATE");
    path = getenv("LAB_DISK_FILE");
    real_pwrite = dlsym(RTLD_NEXT, "pwrite64");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    if (!path || !directory) return;
    snprintf(name, sizeof name, "%s/platter", directory);
    platter = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    snprintf(name, sizeof name, "%s/control", directory);
    int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (platter < 0 || fd < 0 || ftruncate(fd, sizeof *control)) abort();
    control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (control == MAP_FAILED) abort();
    close(fd);
}

static int is_ours(int fd) {
    struct stat one, other;
    return control && !fstat(fd, &one) && !stat(path, &other) && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

static void will_write(int fd, off64_t offset, size_t length) {
    for (off64_t page = offset / PAGE; page * PAGE < offset + (off64_t)length; page++) {
        if (page >= PAGES) abort();
        if (control->state[page] == SAME) {
            char old[PAGE] = {0};
            if (pread(fd, old, PAGE, page * PAGE) < 0) abort();
            if (real_pwrite(platter, old, PAGE, page * PAGE) != PAGE) abort();
        }
        control->state[page] = DIRTY;
        if (control->pages <= page) control->pages = page + 1;
    }
}

static void all(uint8_t from, uint8_t to) {
    for (uint32_t page = 0; page < control->pages; page++)
        if (control->state[page] == from) control->state[page] = to;
}

static int sync_with(int (*real)(int), int fd) {
    if (!is_ours(fd)) return real(fd);
    int result = 0;
    pthread_mutex_lock(&lock);
    if (control->fail_syncs) {
        control->fail_syncs--;
        all(DIRTY, LOST);
        control->failed++;
        errno = EIO;
        result = -1;
    } else {
        result = real(fd);
        if (!result) all(DIRTY, SAME);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

int fsync(int fd) { return sync_with(real_fsync, fd); }
int fdatasync(int fd) { return sync_with(real_fdatasync, fd); }

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    if (!is_ours(fd)) return real_pwrite(fd, data, length, offset);
    pthread_mutex_lock(&lock);
    will_write(fd, offset, length);
    ssize_t written = real_pwrite(fd, data, length, offset);
    pthread_mutex_unlock(&lock);
    return written;
}
ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) { return pwrite64(fd, data, length, offset); }
