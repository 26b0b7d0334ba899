/* SPDX-License-Identifier: Apache-2.0
 *
 * The client of ithaca_volume.h: one request at a time over a local socket, each a frame of a head and a body, as
 * docs/protocol/socket.md has them. C11 and POSIX, and on Linux memory that the server has too.
 */
#ifdef __linux__
#define _GNU_SOURCE
#else
#define _POSIX_C_SOURCE 200809L
#endif

#include "ithaca_volume.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define VERSION 1
#define HEAD_BYTES 32
/* Bytes of a request before its data, at the most. */
#define FIELDS_MAX 32
/* Bytes of a body at the most: the data of the largest read or write, and what comes before it. */
#define BODY_MAX ((size_t)ITHACA_BLOCKS_MAX * ITHACA_BLOCK_BYTES + 64)
/* Bytes of memory that the server has too: the data of the largest read or write. */
#define MEMORY_BYTES ((size_t)ITHACA_BLOCKS_MAX * ITHACA_BLOCK_BYTES)
/* A refusal: block, bytes and version of a conflict come before its words. */
#define REFUSAL_FIELDS 24
#define WORDS_MAX 512
/* How long a server that is connected to may take for each step of that. */
#define OPEN_MILLISECONDS 10000

enum kind {
	INFO = 1,
	BEGIN = 2,
	NEST = 3,
	COMMIT = 4,
	ABORT = 5,
	RELEASE = 6,
	TAKE_OVER = 7,
	READ = 8,
	WRITE = 9,
	READ_PART = 10,
	WRITE_PART = 11,
	MARK_ACCESSED = 12,
	PLEASE_CACHE = 13,
	FLUSH = 14,
	DISCARD = 15,
	OPEN_REGION = 21,
	SHARE_MEMORY = 25,
	READ_INTO = 26,
	WRITE_FROM = 27
};

struct ithaca_volume {
	int fd;
	/* The connection is of no use any more. */
	int lost;
	/* How long to wait until the server is heard of, at the longest; 0 for as long as it takes. */
	uint32_t milliseconds;
	/* The socket waits for less than that, since a signal has ended a wait. */
	int is_short;
	uint64_t next_id;
	uint32_t next_tx;
	/* What the server has too, MEMORY_BYTES of it; NULL if there is none. */
	uint8_t *memory;
	/* A descriptor that goes with the next bytes; -1 if none does. */
	int passing;
	char error[WORDS_MAX + 1];
};

struct ithaca_tx {
	struct ithaca_volume *volume;
	uint32_t number;
	/* Transactions within it that have begun and not ended. */
	uint32_t depth;
};

/* What is known of a connection that was not made. */
static _Thread_local char open_error[2 * WORDS_MAX];

/* --- numbers, little-endian --- */

static void put_u16(uint8_t *at, uint16_t value)
{
	at[0] = (uint8_t)value;
	at[1] = (uint8_t)(value >> 8);
}

static void put_u32(uint8_t *at, uint32_t value)
{
	put_u16(at, (uint16_t)value);
	put_u16(at + 2, (uint16_t)(value >> 16));
}

static void put_u64(uint8_t *at, uint64_t value)
{
	put_u32(at, (uint32_t)value);
	put_u32(at + 4, (uint32_t)(value >> 32));
}

static uint32_t get_u32(const uint8_t *at)
{
	return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint64_t get_u64(const uint8_t *at)
{
	return (uint64_t)get_u32(at) | (uint64_t)get_u32(at + 4) << 32;
}

/* --- CRC-32C --- */

/* ITHACA_PORTABLE leaves out what only some processors have. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(ITHACA_PORTABLE)
#include <nmmintrin.h>
__attribute__((target("sse4.2"))) static uint32_t crc_fast(uint32_t crc, const uint8_t *data, size_t size)
{
	uint64_t wide = crc;
	for (; size >= 8; data += 8, size -= 8) {
		uint64_t word;
		memcpy(&word, data, 8);
		wide = _mm_crc32_u64(wide, word);
	}
	crc = (uint32_t)wide;
	for (; size > 0; data++, size--)
		crc = _mm_crc32_u8(crc, *data);
	return crc;
}
static int has_fast_crc(void)
{
	return __builtin_cpu_supports("sse4.2");
}
#else
static uint32_t crc_fast(uint32_t crc, const uint8_t *data, size_t size)
{
	(void)data;
	(void)size;
	return crc;
}
static int has_fast_crc(void)
{
	return 0;
}
#endif

/* The checksum of what came before, which is `crc`, and of this. Half a byte at a time, so that the table is small enough to be
 * written out. */
static uint32_t crc32c(uint32_t crc, const uint8_t *data, size_t size)
{
	static const uint32_t table[16] = {
		0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
		0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
	};
	crc = ~crc;
	if (has_fast_crc())
		return ~crc_fast(crc, data, size);
	for (; size > 0; data++, size--) {
		crc ^= *data;
		crc = crc >> 4 ^ table[crc & 15];
		crc = crc >> 4 ^ table[crc & 15];
	}
	return ~crc;
}

/* --- the connection --- */

static int fail(struct ithaca_volume *volume, int status, const char *words)
{
	snprintf(volume->error, sizeof volume->error, "%s", words);
	return status;
}

/* The connection is of no use any more. What failed first is what is told. */
static int lose(struct ithaca_volume *volume, const char *operation, const char *words)
{
	if (!volume->lost)
		snprintf(volume->error, sizeof volume->error, "%s: %s", operation, words);
	volume->lost = 1;
	return ITHACA_LOST;
}

/* Why a call of the system about a connection failed. */
static const char *why(int error)
{
	/* Only where the time to wait is bounded. */
	if (error == EAGAIN || error == EWOULDBLOCK)
		return "the server has not answered in time";
	return error == EPIPE ? "the server has ended the connection" : strerror(error);
}

/* How long to wait, at the longest; 0 for as long as it takes. */
static int set_timeout(int fd, uint32_t milliseconds)
{
	struct timeval longest = { .tv_sec = milliseconds / 1000, .tv_usec = milliseconds % 1000 * 1000 };
	int result = setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &longest, sizeof longest);
	return result == 0 ? setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &longest, sizeof longest) : result;
}

static uint64_t now_ms(void)
{
	struct timespec now = { 0 };
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* A signal has ended a wait that began at `since`: the next one is for what is left of the time. Gives whether there is any; if not, errno is EAGAIN
 * as it is at the end of a wait. */
static int wait_on(int fd, uint32_t milliseconds, uint64_t since)
{
	if (milliseconds == 0)
		return 1;
	uint64_t waited = now_ms() - since;
	errno = EAGAIN;
	return waited < milliseconds && set_timeout(fd, milliseconds - (uint32_t)waited) == 0;
}

/* All of the time may pass from now on, which is returned. */
static uint64_t begin_wait(struct ithaca_volume *volume)
{
	if (volume->is_short)
		set_timeout(volume->fd, volume->milliseconds);
	volume->is_short = 0;
	return volume->milliseconds ? now_ms() : 0;
}

/* Whether a wait that began at `since` and failed goes on. */
static int goes_on(struct ithaca_volume *volume, uint64_t since)
{
	if (errno != EINTR)
		return 0;
	volume->is_short = 1;
	return wait_on(volume->fd, volume->milliseconds, since);
}

/* Puts the descriptor that goes with a message behind it. */
static void attach(struct msghdr *message, void *space, size_t size, int fd)
{
	memset(space, 0, size);
	message->msg_control = space;
	message->msg_controllen = size;
	struct cmsghdr *control = CMSG_FIRSTHDR(message);
	control->cmsg_level = SOL_SOCKET;
	control->cmsg_type = SCM_RIGHTS;
	control->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(control), &fd, sizeof fd);
}

static int send_all(struct ithaca_volume *volume, struct iovec *pieces, size_t count)
{
	uint64_t since = begin_wait(volume);
	while (count > 0) {
		struct msghdr message = { .msg_iov = pieces, .msg_iovlen = count };
		union {
			struct cmsghdr head;
			char bytes[CMSG_SPACE(sizeof(int))];
		} space;
		if (volume->passing >= 0)
			attach(&message, &space, sizeof space, volume->passing);
		ssize_t sent = sendmsg(volume->fd, &message, MSG_NOSIGNAL);
		if (sent < 0 && goes_on(volume, since))
			continue;
		if (sent < 0)
			return lose(volume, "send", why(errno));
		volume->passing = -1;
		since = begin_wait(volume);
		while (count > 0 && (size_t)sent >= pieces->iov_len) {
			sent -= (ssize_t)pieces->iov_len;
			pieces++;
			count--;
		}
		if (count > 0) {
			pieces->iov_base = (uint8_t *)pieces->iov_base + sent;
			pieces->iov_len -= (size_t)sent;
		}
	}
	return ITHACA_OK;
}

static int receive_all(struct ithaca_volume *volume, void *data, size_t size)
{
	uint8_t *at = data;
	uint64_t since = begin_wait(volume);
	while (size > 0) {
		ssize_t received = recv(volume->fd, at, size, MSG_WAITALL);
		if (received < 0 && goes_on(volume, since))
			continue;
		if (received <= 0)
			return lose(volume, "receive", why(received < 0 ? errno : EPIPE));
		since = begin_wait(volume);
		at += received;
		size -= (size_t)received;
	}
	return ITHACA_OK;
}

/* A request: its fields, and the data that follows them. */
struct request {
	enum kind kind;
	uint32_t tx;
	uint8_t fields[FIELDS_MAX];
	size_t fields_size;
	const void *data;
	size_t data_size;
};

static int send_request(struct ithaca_volume *volume, const struct request *request, uint64_t id)
{
	uint8_t head[HEAD_BYTES];
	uint32_t crc;
	memcpy(head, "ITvs", 4);
	put_u16(head + 4, VERSION);
	put_u16(head + 6, (uint16_t)request->kind);
	put_u64(head + 8, id);
	put_u32(head + 16, request->tx);
	put_u32(head + 20, 0);
	put_u32(head + 24, (uint32_t)(request->fields_size + request->data_size));
	crc = crc32c(0, head, 28);
	crc = crc32c(crc, request->fields, request->fields_size);
	crc = crc32c(crc, request->data, request->data_size);
	put_u32(head + 28, crc);
	struct iovec pieces[3] = {
		{ head, sizeof head },
		{ (void *)request->fields, request->fields_size },
		{ (void *)request->data, request->data_size },
	};
	return send_all(volume, pieces, 3);
}

/* Takes a refusal of `size` bytes, of which `crc` is the checksum of the head. */
static int take_refusal(struct ithaca_volume *volume, uint32_t status, size_t size, uint32_t crc, uint32_t expected)
{
	uint8_t body[REFUSAL_FIELDS + WORDS_MAX];
	if (size < REFUSAL_FIELDS || size > sizeof body)
		return lose(volume, "receive", "a refusal of another length than any has");
	int result = receive_all(volume, body, size);
	if (result != ITHACA_OK)
		return result;
	if (crc32c(crc, body, size) != expected)
		return lose(volume, "receive", "a frame was harmed on its way");
	size_t words = size - REFUSAL_FIELDS;
	memcpy(volume->error, body + REFUSAL_FIELDS, words);
	volume->error[words] = 0;
	if (status == ITHACA_FRAME)
		volume->lost = 1;
	return (int)status;
}

/* Sends a request and waits for its answer, of exactly `size` bytes, or, if `got` is given, of at most so many. */
static int call(struct ithaca_volume *volume, const struct request *request, void *answer, size_t size, size_t *got)
{
	if (volume->lost)
		return ITHACA_LOST;
	volume->error[0] = 0;
	uint64_t id = volume->next_id++;
	int result = send_request(volume, request, id);
	/* A server that has refused the connection has said why before. One that has not must not wait for the rest of the request. */
	if (result != ITHACA_OK)
		shutdown(volume->fd, SHUT_WR);
	uint8_t head[HEAD_BYTES];
	int received = receive_all(volume, head, sizeof head);
	if (received != ITHACA_OK)
		return received;
	uint32_t status = get_u32(head + 20), crc = crc32c(0, head, 28);
	size_t length = get_u32(head + 24);
	if (memcmp(head, "ITvs", 4) != 0 || head[4] != VERSION || head[5] != 0 || length > BODY_MAX)
		return lose(volume, "receive", "what came is no frame of this version");
	if (status != ITHACA_OK)
		return take_refusal(volume, status, length, crc, get_u32(head + 28));
	if (result != ITHACA_OK)
		return result;
	if (get_u64(head + 8) != id)
		return lose(volume, "receive", "an answer to something else");
	if (got ? length > size : length != size)
		return lose(volume, "receive", "an answer of another length than was asked for");
	result = receive_all(volume, answer, length);
	if (result != ITHACA_OK)
		return result;
	if (crc32c(crc, answer, length) != get_u32(head + 28))
		return lose(volume, "receive", "a frame was harmed on its way");
	if (got)
		*got = length;
	return ITHACA_OK;
}

/* Whether so many bytes are whole blocks, and as many as one request may have. */
static int check_blocks(struct ithaca_volume *volume, size_t size)
{
	if (size == 0 || size % ITHACA_BLOCK_BYTES != 0)
		return fail(volume, ITHACA_REQUEST, "data that is not whole blocks of 4096 bytes");
	if (size / ITHACA_BLOCK_BYTES > ITHACA_BLOCKS_MAX)
		return fail(volume, ITHACA_REQUEST, "more blocks than one request may have");
	return ITHACA_OK;
}

static int check_part(struct ithaca_volume *volume, size_t start, size_t size)
{
	if (size == 0 || size > ITHACA_BLOCK_BYTES || start > ITHACA_BLOCK_BYTES - size)
		return fail(volume, ITHACA_REQUEST, "bytes that no block has");
	return ITHACA_OK;
}

static int read_blocks(struct ithaca_volume *volume, uint32_t tx, uint64_t block, void *data, size_t size)
{
	struct request request = { .kind = READ, .tx = tx, .fields_size = 12 };
	int result = check_blocks(volume, size);
	if (result != ITHACA_OK)
		return result;
	put_u64(request.fields, block);
	put_u32(request.fields + 8, (uint32_t)(size / ITHACA_BLOCK_BYTES));
	if (!volume->memory)
		return call(volume, &request, data, size, NULL);
	request.kind = READ_INTO;
	request.fields_size = 16;
	put_u32(request.fields + 12, 0);
	result = call(volume, &request, NULL, 0, NULL);
	if (result == ITHACA_OK)
		memcpy(data, volume->memory, size);
	return result;
}

static int write_blocks(struct ithaca_volume *volume, uint32_t tx, uint64_t block, const void *data, size_t size, int stable)
{
	struct request request = { .kind = WRITE, .tx = tx, .fields_size = 9, .data = data, .data_size = size };
	uint8_t version[8];
	int result = check_blocks(volume, size);
	if (result != ITHACA_OK)
		return result;
	put_u64(request.fields, block);
	if (volume->memory) {
		/* One call at a time: the server has answered what was there before. */
		memcpy(volume->memory, data, size);
		request = (struct request){ .kind = WRITE_FROM, .tx = tx, .fields_size = 17 };
		put_u64(request.fields, block);
		put_u32(request.fields + 8, (uint32_t)(size / ITHACA_BLOCK_BYTES));
		put_u32(request.fields + 12, 0);
	}
	request.fields[request.fields_size - 1] = stable ? 0 : 1;
	return call(volume, &request, version, sizeof version, NULL);
}

/* Maps memory that the server may have too: all of it is there, and nobody can take it away. Returns its descriptor, -1 if there is none. */
static int make_memory(uint8_t **memory)
{
#ifdef MFD_ALLOW_SEALING
	int fd = memfd_create("ithaca", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -1;
	if (ftruncate(fd, (off_t)MEMORY_BYTES) == 0 && posix_fallocate(fd, 0, (off_t)MEMORY_BYTES) == 0 &&
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
		void *mapped = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (mapped != MAP_FAILED) {
			*memory = mapped;
			return fd;
		}
	}
	close(fd);
#endif
	(void)memory;
	return -1;
}

/* Asks the server to use memory of this library; if it does not, all goes through the socket. */
static int share_memory(struct ithaca_volume *volume)
{
	struct request request = { .kind = SHARE_MEMORY };
	uint8_t *memory = NULL;
	int fd = make_memory(&memory);
	if (fd < 0)
		return ITHACA_OK;
	volume->passing = fd;
	int result = call(volume, &request, NULL, 0, NULL);
	close(fd);
	if (result == ITHACA_OK)
		volume->memory = memory;
	else
		munmap(memory, MEMORY_BYTES);
	volume->passing = -1;
	return volume->lost ? result : ITHACA_OK;
}

/* --- what others call --- */

static int unreachable(const char *path, const char *words)
{
	snprintf(open_error, sizeof open_error, "%s: %s", path, words);
	return ITHACA_UNREACHABLE;
}

/* Connects a socket, in as long as opening may take. */
static int connect_in_time(int fd, const struct sockaddr_un *address)
{
	uint64_t since = now_ms();
	if (set_timeout(fd, OPEN_MILLISECONDS) != 0)
		return -1;
	while (connect(fd, (const struct sockaddr *)address, sizeof *address) != 0) {
		/* Where the system goes on by itself after a signal. */
		if (errno == EISCONN)
			break;
		if (errno != EINTR || !wait_on(fd, OPEN_MILLISECONDS, since))
			return -1;
	}
	return 0;
}

/* Connects. What follows is waited for as long as opening may take. */
static int reach(const char *path, struct ithaca_volume **volume)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	*volume = NULL;
	open_error[0] = 0;
	if (strlen(path) >= sizeof address.sun_path)
		return unreachable(path, "longer than the path of a socket may be");
	strcpy(address.sun_path, path);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return unreachable(path, strerror(errno));
	if (connect_in_time(fd, &address) != 0) {
		int error = errno;
		close(fd);
		return unreachable(path, why(error));
	}
	struct ithaca_volume *made = calloc(1, sizeof *made);
	if (!made) {
		close(fd);
		snprintf(open_error, sizeof open_error, "%s: no memory is left", path);
		return ITHACA_NO_MEMORY;
	}
	made->fd = fd;
	made->milliseconds = OPEN_MILLISECONDS;
	made->is_short = 1;
	made->next_id = 1;
	made->next_tx = 1;
	made->passing = -1;
	*volume = made;
	return ITHACA_OK;
}

/* What was opened waits for as long as it takes; unless it was not. */
static int opened(const char *path, int result, struct ithaca_volume **volume)
{
	if (result == ITHACA_OK)
		result = ithaca_set_timeout(*volume, 0);
	if (result == ITHACA_OK)
		return result;
	result = unreachable(path, (*volume)->error);
	ithaca_close(*volume);
	*volume = NULL;
	return result;
}

int ithaca_open(const char *path, struct ithaca_volume **volume)
{
	int result = reach(path, volume);
	return result == ITHACA_OK ? opened(path, share_memory(*volume), volume) : result;
}

int ithaca_open_without_memory(const char *path, struct ithaca_volume **volume)
{
	int result = reach(path, volume);
	return result == ITHACA_OK ? opened(path, result, volume) : result;
}

int ithaca_set_timeout(struct ithaca_volume *volume, uint32_t milliseconds)
{
	if (set_timeout(volume->fd, milliseconds) != 0)
		return fail(volume, ITHACA_REQUEST, strerror(errno));
	volume->milliseconds = milliseconds;
	volume->is_short = 0;
	return ITHACA_OK;
}

void ithaca_close(struct ithaca_volume *volume)
{
	if (!volume)
		return;
	close(volume->fd);
	if (volume->memory)
		munmap(volume->memory, MEMORY_BYTES);
	free(volume);
}

const char *ithaca_last_error(const struct ithaca_volume *volume)
{
	return volume ? volume->error : open_error;
}

int ithaca_info(struct ithaca_volume *volume, struct ithaca_info *info)
{
	struct request request = { .kind = INFO };
	static const size_t fixed = 103;
	uint8_t *answer = malloc(BODY_MAX);
	size_t got = 0;
	if (!answer)
		return fail(volume, ITHACA_NO_MEMORY, "no memory is left");
	int result = call(volume, &request, answer, BODY_MAX, &got);
	if (result == ITHACA_OK && got < fixed)
		result = lose(volume, "receive", "an answer of another length than was asked for");
	if (result == ITHACA_OK) {
		memcpy(info->id, answer, 16);
		info->blocks = get_u64(answer + 16);
		info->version = get_u64(answer + 45);
		info->floor = get_u64(answer + 53);
		info->data_blocks = get_u64(answer + 61);
	}
	free(answer);
	return result;
}

int ithaca_read(struct ithaca_volume *volume, uint64_t block, void *data, size_t size)
{
	return read_blocks(volume, 0, block, data, size);
}

int ithaca_write(struct ithaca_volume *volume, uint64_t block, const void *data, size_t size, int stable)
{
	return write_blocks(volume, 0, block, data, size, stable);
}

int ithaca_open_region(struct ithaca_volume *volume, const char *name, uint64_t *blocks)
{
	struct request request = { .kind = OPEN_REGION, .data = name, .data_size = strlen(name) };
	/* How many regions, which is one; its first block, its blocks, and its name behind its length. */
	uint8_t answer[2 + 8 + 8 + 1 + 255];
	size_t got;
	int result = call(volume, &request, answer, sizeof answer, &got);
	if (result != ITHACA_OK)
		return result;
	if (got < 19)
		return lose(volume, "receive", "an answer of another length than was asked for");
	if (blocks)
		*blocks = get_u64(answer + 10);
	return ITHACA_OK;
}

int ithaca_flush(struct ithaca_volume *volume)
{
	struct request request = { .kind = FLUSH };
	uint8_t version[8];
	return call(volume, &request, version, sizeof version, NULL);
}

int ithaca_discard(struct ithaca_volume *volume, uint64_t block, uint64_t count, int stable)
{
	struct request request = { .kind = DISCARD, .fields_size = 17 };
	uint8_t version[8];
	put_u64(request.fields, block);
	put_u64(request.fields + 8, count);
	request.fields[16] = stable ? 0 : 1;
	return call(volume, &request, version, sizeof version, NULL);
}

int ithaca_please_cache(struct ithaca_volume *volume, uint64_t block)
{
	struct request request = { .kind = PLEASE_CACHE, .fields_size = 8 };
	put_u64(request.fields, block);
	return call(volume, &request, NULL, 0, NULL);
}

/* Sends what begins a transaction, and makes one of the answer. */
static int enter(struct ithaca_volume *volume, struct request *request, struct ithaca_tx **tx)
{
	/* The version that it reads, and how deep it is nested. */
	uint8_t answer[12];
	struct ithaca_tx *made = calloc(1, sizeof *made);
	*tx = NULL;
	if (!made)
		return fail(volume, ITHACA_NO_MEMORY, "no memory is left");
	made->volume = volume;
	made->number = volume->next_tx++;
	if (volume->next_tx == 0)
		volume->next_tx = 1;
	request->tx = made->number;
	int result = call(volume, request, answer, sizeof answer, NULL);
	if (result != ITHACA_OK) {
		free(made);
		return result;
	}
	made->depth = get_u32(answer + 8);
	*tx = made;
	return ITHACA_OK;
}

int ithaca_begin(struct ithaca_volume *volume, enum ithaca_isolation isolation, struct ithaca_tx **tx)
{
	struct request request = { .kind = BEGIN, .fields = { (uint8_t)isolation, 0 }, .fields_size = 2 };
	return enter(volume, &request, tx);
}

int ithaca_takeover(struct ithaca_volume *volume, const struct ithaca_handle *handle, struct ithaca_tx **tx)
{
	struct request request = { .kind = TAKE_OVER, .fields_size = sizeof handle->bytes };
	memcpy(request.fields, handle->bytes, sizeof handle->bytes);
	return enter(volume, &request, tx);
}

int ithaca_begin_nested(struct ithaca_tx *tx)
{
	struct request request = { .kind = NEST, .tx = tx->number };
	int result = call(tx->volume, &request, NULL, 0, NULL);
	if (result == ITHACA_OK)
		tx->depth++;
	return result;
}

uint32_t ithaca_depth(const struct ithaca_tx *tx)
{
	return tx->depth;
}

/* The transaction has ended, or the innermost one within it. */
static void leave(struct ithaca_tx *tx)
{
	if (tx->depth > 0)
		tx->depth--;
	else
		free(tx);
}

int ithaca_commit(struct ithaca_tx *tx, uint64_t *version)
{
	struct request request = { .kind = COMMIT, .tx = tx->number };
	uint8_t answer[8];
	int result = call(tx->volume, &request, answer, sizeof answer, NULL);
	if (result == ITHACA_OK && version)
		*version = get_u64(answer);
	leave(tx);
	return result;
}

int ithaca_abort(struct ithaca_tx *tx)
{
	struct request request = { .kind = ABORT, .tx = tx->number };
	int result = call(tx->volume, &request, NULL, 0, NULL);
	leave(tx);
	return result;
}

int ithaca_release(struct ithaca_tx *tx, int anyone, struct ithaca_handle *handle)
{
	struct request request = { .kind = RELEASE, .tx = tx->number, .fields = { anyone ? 1 : 0 }, .fields_size = 1 };
	int result = call(tx->volume, &request, handle->bytes, sizeof handle->bytes, NULL);
	free(tx);
	return result;
}

int ithaca_tx_read(struct ithaca_tx *tx, uint64_t block, void *data, size_t size)
{
	return read_blocks(tx->volume, tx->number, block, data, size);
}

/* A write is refused before the server hears of it, with the words that are there. It hears of it by a write of no bytes, which it refuses too: so
 * nothing of the transaction commits, whoever does that. */
static int refuse_write(struct ithaca_tx *tx)
{
	struct request request = { .kind = WRITE_PART, .tx = tx->number, .fields_size = 12 };
	char words[sizeof tx->volume->error];
	memcpy(words, tx->volume->error, sizeof words);
	int result = call(tx->volume, &request, NULL, 0, NULL);
	return tx->volume->lost ? result : fail(tx->volume, ITHACA_REQUEST, words);
}

int ithaca_tx_write(struct ithaca_tx *tx, uint64_t block, const void *data, size_t size)
{
	if (check_blocks(tx->volume, size) != ITHACA_OK)
		return refuse_write(tx);
	return write_blocks(tx->volume, tx->number, block, data, size, 1);
}

/* A request about bytes of one block. */
static void put_part(struct request *request, uint64_t block, size_t start, size_t size)
{
	put_u64(request->fields, block);
	put_u32(request->fields + 8, (uint32_t)start);
	put_u32(request->fields + 12, (uint32_t)(start + size));
	request->fields_size = 16;
}

int ithaca_tx_read_part(struct ithaca_tx *tx, uint64_t block, size_t start, void *data, size_t size)
{
	struct request request = { .kind = READ_PART, .tx = tx->number };
	int result = check_part(tx->volume, start, size);
	if (result != ITHACA_OK)
		return result;
	put_part(&request, block, start, size);
	return call(tx->volume, &request, data, size, NULL);
}

int ithaca_tx_write_part(struct ithaca_tx *tx, uint64_t block, size_t start, const void *data, size_t size)
{
	struct request request = { .kind = WRITE_PART, .tx = tx->number, .fields_size = 12, .data = data, .data_size = size };
	if (check_part(tx->volume, start, size) != ITHACA_OK)
		return refuse_write(tx);
	put_u64(request.fields, block);
	put_u32(request.fields + 8, (uint32_t)start);
	return call(tx->volume, &request, NULL, 0, NULL);
}

int ithaca_mark_accessed(struct ithaca_tx *tx, uint64_t block, size_t start, size_t size)
{
	struct request request = { .kind = MARK_ACCESSED, .tx = tx->number };
	int result = check_part(tx->volume, start, size);
	if (result != ITHACA_OK)
		return result;
	put_part(&request, block, start, size);
	return call(tx->volume, &request, NULL, 0, NULL);
}
