/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that clients share with the server, by a client that does what the library never does: memory SOCKET. Prints `ok` and ends with 0, or
 * says which line failed. The library is within, so that its frames can be used.
 */
#include "../ithaca_volume.c"
#include "check.h"

#include <signal.h>
#include <sys/wait.h>

static const char *path;

/* A memory file of this size, `there` bytes of which are there. */
static int file(off_t size, off_t there, int seals)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	CHECK(fd >= 0 && ftruncate(fd, size) == 0);
	CHECK(there == 0 || posix_fallocate(fd, 0, there) == 0);
	CHECK(fcntl(fd, F_ADD_SEALS, seals) == 0);
	return fd;
}

static int share(int fd)
{
	struct request request = { .kind = SHARE_MEMORY };
	volume->passing = fd;
	return call(volume, &request, NULL, 0, NULL);
}

/* The server refuses this descriptor with these words, and goes on. */
static void refused(int fd, const char *words)
{
	CHECK(ithaca_open_without_memory(path, &volume) == ITHACA_OK);
	CHECK(share(fd) == ITHACA_REQUEST);
	CHECK(strstr(ithaca_last_error(volume), words) && !strchr(ithaca_last_error(volume), '\n'));
	CHECK(ithaca_flush(volume) == ITHACA_OK);
	ithaca_close(volume);
	if (fd >= 0)
		close(fd);
}

static void what_could_be_taken_away_is_refused(void)
{
	const off_t size = 2 * ITHACA_BLOCK_BYTES, most = 64 << 20;
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
	int ends[2];
	FILE *ordinary = tmpfile();
	CHECK(pipe(ends) == 0 && ordinary && ftruncate(fileno(ordinary), size) == 0);
	refused(-1, "no memory came");
	refused(ends[0], "no memory file");
	refused(dup(fileno(ordinary)), "no");
	refused(file(size, size, 0), "not sealed");
	refused(file(size, size, F_SEAL_GROW), "not sealed");
	refused(file(size, size, F_SEAL_SHRINK), "not sealed");
	refused(file(size, ITHACA_BLOCK_BYTES, seals), "has 4096 of its 8192 bytes");
	refused(file(size, size, seals | F_SEAL_WRITE), "map memory");
	refused(file(0, 0, seals), "has 0 bytes");
	refused(file(100, 100, seals), "has 100 bytes");
	refused(file(most + ITHACA_BLOCK_BYTES, most + ITHACA_BLOCK_BYTES, seals), "at most 67108864");
	fclose(ordinary);
	close(ends[1]);
}

static void memory_comes_first_or_not_at_all(void)
{
	int fd = file(ITHACA_BLOCK_BYTES, ITHACA_BLOCK_BYTES, F_SEAL_SHRINK | F_SEAL_GROW);
	CHECK(ithaca_open_without_memory(path, &volume) == ITHACA_OK);
	CHECK(ithaca_flush(volume) == ITHACA_OK);
	CHECK(share(fd) == ITHACA_REQUEST);
	ithaca_close(volume);
	CHECK(ithaca_open_without_memory(path, &volume) == ITHACA_OK);
	CHECK(share(fd) == ITHACA_OK);
	CHECK(share(fd) == ITHACA_REQUEST && strstr(ithaca_last_error(volume), "already"));
	struct request outside = { .kind = READ_INTO, .fields = { [8] = 1, [12] = 1 }, .fields_size = 16 };
	CHECK(call(volume, &outside, NULL, 0, NULL) == ITHACA_OUT_OF_RANGE);
	ithaca_close(volume);
	close(fd);
}

/* Another process writes all over the memory while blocks of it are written: they are mixtures, and all else is as ever. */
static void who_changes_its_memory_meanwhile_hurts_itself_alone(void)
{
	static unsigned char data[64 * ITHACA_BLOCK_BYTES], other[ITHACA_BLOCK_BYTES];
	CHECK(ithaca_open(path, &volume) == ITHACA_OK && volume->memory);
	CHECK(ithaca_write(volume, 100, memset(other, 9, sizeof other), sizeof other, 1) == ITHACA_OK);
	pid_t child = fork();
	CHECK(child >= 0);
	for (unsigned char with = 0; child == 0; with ^= 1)
		memset(volume->memory, with, sizeof data);
	for (int round = 0; round < 50; round++) {
		CHECK(ithaca_write(volume, 0, data, sizeof data, 0) == ITHACA_OK);
		CHECK(ithaca_read(volume, 0, data, sizeof data) == ITHACA_OK);
	}
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
	CHECK(ithaca_read(volume, 0, data, sizeof data) == ITHACA_OK);
	for (size_t at = 0; at < sizeof data; at++)
		CHECK(data[at] <= 1);
	CHECK(ithaca_read(volume, 100, data, sizeof other) == ITHACA_OK);
	CHECK(memcmp(data, other, sizeof other) == 0);
	ithaca_close(volume);
}

/* The server uses the memory of processes that have ended, which nobody else has any more. */
static void a_process_that_ends_leaves_requests_behind(void)
{
	for (int round = 0; round < 20; round++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			struct request request = { .kind = READ_INTO, .fields_size = 16 };
			CHECK(ithaca_open(path, &volume) == ITHACA_OK && volume->memory);
			put_u32(request.fields + 8, ITHACA_BLOCKS_MAX);
			for (uint64_t id = 1000; id < 1008; id++)
				CHECK(send_request(volume, &request, id) == ITHACA_OK);
			_exit(0);
		}
		int status;
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	}
	CHECK(ithaca_open(path, &volume) == ITHACA_OK);
	CHECK(ithaca_flush(volume) == ITHACA_OK);
	ithaca_close(volume);
}

int main(int count, char **arguments)
{
	if (count != 2) {
		fprintf(stderr, "usage: memory SOCKET\n");
		return 2;
	}
	path = arguments[1];
	what_could_be_taken_away_is_refused();
	memory_comes_first_or_not_at_all();
	who_changes_its_memory_meanwhile_hurts_itself_alone();
	a_process_that_ends_leaves_requests_behind();
	puts("ok");
	return 0;
}
