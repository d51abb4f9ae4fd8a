/* Kills its process at a named point: preloaded into a server by the tests beside it.
   A point is "CLASS.ACTION#N": before the N-th call of this action on a file of this class. It counts only while
   the file KILL_ARMED exists.
   Classes: log (SQLite's write-ahead log), fold (the database, into which the log is folded by a clock), lfs, object and
   ref (of the release repository), commit (a transaction of Postgres), file (anything else).
   Actions: begin (the first write of several), sync, name (rename or link); of a commit: send, sent and answered.
   A rename that a program asks the kernel for without the C library is not seen; what it leaves is what a kill before
   the next point leaves, and what was there before it is what a kill before the sync of the file leaves.
   KILL_AT: the point; none = never. KILL_TRACE: file that gets the name of every point, a line each. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define DESCRIPTORS 4096
#define NAMES 64

static const char *kill_at, *armed;
static int trace = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { char name[32]; long count; } seen[NAMES];
/* Of each descriptor: bytes written since it was opened or synced; a commit was sent on it. */
static size_t written[DESCRIPTORS];
static char committing[DESCRIPTORS];
/* What SQLite writes and syncs alone when it begins its log anew, which depends on when the log was folded. */
#define LOG_HEAD_BYTES 32

__attribute__((constructor)) void kill_at_begin(void)
{
	const char *path = getenv("KILL_TRACE");
	kill_at = getenv("KILL_AT");
	armed = getenv("KILL_ARMED");
	kill_at = kill_at ? strdup(kill_at) : NULL;
	armed = armed ? strdup(armed) : NULL;
	if (path)
		trace = open(path, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
	/* The server's own children are not meant. */
	unsetenv("LD_PRELOAD");
	unsetenv("KILL_AT");
	unsetenv("KILL_ARMED");
	unsetenv("KILL_TRACE");
}

static void point(const char *class, const char *action)
{
	char name[32], told[64];
	long count = 0;
	if (!class || (!kill_at && trace < 0) || (armed && access(armed, F_OK) != 0))
		return;
	snprintf(name, sizeof name, "%s.%s", class, action);
	pthread_mutex_lock(&lock);
	for (int at = 0; at < NAMES; at++) {
		if (!seen[at].name[0])
			strcpy(seen[at].name, name);
		if (strcmp(seen[at].name, name) == 0) {
			count = ++seen[at].count;
			break;
		}
	}
	pthread_mutex_unlock(&lock);
	int length = snprintf(told, sizeof told, "%s#%ld\n", name, count);
	if (trace >= 0 && write(trace, told, length) != length)
		abort();
	told[length - 1] = 0;
	if (kill_at && strcmp(kill_at, told) == 0)
		kill(getpid(), SIGKILL);
}

static int ends(const char *path, const char *with)
{
	size_t length = strlen(path), tail = strlen(with);
	return length >= tail && strcmp(path + length - tail, with) == 0;
}

static const char *class_of(const char *path)
{
	if (path[0] != '/' || strncmp(path, "/proc/", 6) == 0 || strncmp(path, "/dev/", 5) == 0 || ends(path, "-shm"))
		return NULL;
	if (ends(path, "reef.db-wal"))
		return "log";
	if (ends(path, "reef.db"))
		return "fold";
	if (!strstr(path, "/releases.git/"))
		return "file";
	if (strstr(path, "/lfs/"))
		return "lfs";
	return strstr(path, "/objects/") ? "object" : "ref";
}

static const char *class_of_descriptor(int fd)
{
	char link[64], path[4096];
	struct stat about;
	if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode))
		return NULL;
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t length = readlink(link, path, sizeof path - 1);
	if (length <= 0)
		return NULL;
	path[length] = 0;
	return class_of(path);
}

static int known(int fd)
{
	return fd >= 0 && fd < DESCRIPTORS;
}

/* A file's first write, or a commit that goes to Postgres. */
static int before_write(int fd, const void *bytes, size_t length)
{
	static const char commit[] = "COMMIT";
	struct stat about;
	if (!known(fd) || fd == trace)
		return 0;
	if (written[fd] == 0 && length > 0) {
		if (fstat(fd, &about) != 0 || !S_ISSOCK(about.st_mode))
			point(class_of_descriptor(fd), "begin");
	}
	written[fd] += length;
	if (memmem(bytes, length, commit, sizeof commit) && fstat(fd, &about) == 0 && S_ISSOCK(about.st_mode)) {
		point("commit", "send");
		return 1;
	}
	return 0;
}

static void after_write(int fd, int is_commit)
{
	if (is_commit) {
		committing[fd] = 1;
		point("commit", "sent");
	}
}

static void after_read(int fd, ssize_t got)
{
	if (known(fd) && committing[fd] && got > 0) {
		committing[fd] = 0;
		point("commit", "answered");
	}
}

static void before_sync(int fd)
{
	const char *class = class_of_descriptor(fd);
	int is_log = class && strcmp(class, "log") == 0;
	if (is_log && known(fd) && (written[fd] == 0 || written[fd] == LOG_HEAD_BYTES)) {
		point("fold", "sync");
		return;
	}
	point(class, "sync");
	if (known(fd))
		written[fd] = 0;
}

#define REAL(result, name, parameters)                                    \
	static result(*_Atomic real) parameters;                          \
	if (!real)                                                        \
	real = (result(*) parameters)dlsym(RTLD_NEXT, #name)

#define SYNC(name)                                                        \
	int name(int fd)                                                  \
	{                                                                 \
		REAL(int, name, (int));                                   \
		before_sync(fd);                                          \
		return real(fd);                                          \
	}

#define NAMED(name, parameters, arguments)                                \
	int name parameters                                               \
	{                                                                 \
		char path[4096];                                          \
		REAL(int, name, parameters);                              \
		point(class_of(realpath(from, path) ? path : from), "name"); \
		return real arguments;                                    \
	}

#define WRITE(name, parameters, arguments, bytes, length)                 \
	ssize_t name parameters                                           \
	{                                                                 \
		REAL(ssize_t, name, parameters);                          \
		int is_commit = before_write(fd, bytes, length);          \
		ssize_t done = real arguments;                            \
		after_write(fd, is_commit);                               \
		return done;                                              \
	}

#define READ(name, parameters, arguments)                                 \
	ssize_t name parameters                                           \
	{                                                                 \
		REAL(ssize_t, name, parameters);                          \
		ssize_t got = real arguments;                             \
		after_read(fd, got);                                      \
		return got;                                               \
	}

SYNC(fsync)
SYNC(fdatasync)
NAMED(rename, (const char *from, const char *to), (from, to))
NAMED(renameat, (int a, const char *from, int b, const char *to), (a, from, b, to))
NAMED(renameat2, (int a, const char *from, int b, const char *to, unsigned flags), (a, from, b, to, flags))
NAMED(link, (const char *from, const char *to), (from, to))
NAMED(linkat, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags))
WRITE(write, (int fd, const void *bytes, size_t length), (fd, bytes, length), bytes, length)
WRITE(send, (int fd, const void *bytes, size_t length, int flags), (fd, bytes, length, flags), bytes, length)
WRITE(pwrite, (int fd, const void *bytes, size_t length, off_t at), (fd, bytes, length, at), bytes, length)
WRITE(pwrite64, (int fd, const void *bytes, size_t length, off64_t at), (fd, bytes, length, at), bytes, length)
WRITE(writev, (int fd, const struct iovec *parts, int count), (fd, parts, count), count > 0 ? parts[0].iov_base : "",
      count > 0 ? parts[0].iov_len : 0)
READ(read, (int fd, void *bytes, size_t length), (fd, bytes, length))
READ(recv, (int fd, void *bytes, size_t length, int flags), (fd, bytes, length, flags))

/* A descriptor that is used again is another file. */
int close(int fd)
{
	REAL(int, close, (int));
	if (known(fd))
		written[fd] = committing[fd] = 0;
	return real(fd);
}
