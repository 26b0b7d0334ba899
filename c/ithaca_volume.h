/* SPDX-License-Identifier: Apache-2.0
 *
 * Transactions on a volume of Ithaca, for C programs.
 *
 * `ithaca volume serve DIR` listens at DIR/volume.sock. A program connects, begins transactions, reads and writes blocks of 4096
 * bytes in them, and commits: all of a transaction is there, durable, or nothing. docs/protocol/socket.md says what each call
 * promises and every byte that is sent.
 *
 *     struct ithaca_volume *volume;
 *     struct ithaca_tx *tx;
 *     if (ithaca_open("disk/volume.sock", &volume) != ITHACA_OK) ...
 *     if (ithaca_begin(volume, ITHACA_AS_VOLUME, &tx) != ITHACA_OK) ...
 *     result = ithaca_tx_read(tx, 0, block, sizeof block);
 *     if (result == ITHACA_OK)
 *             result = ithaca_tx_write(tx, 0, block, sizeof block);
 *     if (result == ITHACA_OK)
 *             result = ithaca_commit(tx, &version);
 *     else
 *             ithaca_abort(tx);
 *     if (result == ITHACA_CONFLICT || result == ITHACA_PREEMPTED) ... begin again
 *
 * Blocks do not travel through the socket: the library has memory that the server reads and writes too, where the server and the system know of it.
 *
 * Every call waits for its answer, for as long as ithaca_set_timeout says. A connection is for one thread at a time: programs with several threads open one each. No call
 * leaves anything on the heap but what ithaca_open, ithaca_begin and ithaca_takeover give.
 *
 * After a fork a connection is that of one of both processes: the other calls nothing but ithaca_close for it, by which
 * nothing ends, and opens its own. A process that dies takes its transactions along when nobody has the connection open any
 * more: a child that has neither closed it nor called exec does.
 *
 * Every function that returns an int returns ITHACA_OK or why it was not done; ithaca_last_error has words for people. After
 * ITHACA_LOST the connection is gone, and with it every transaction that was not released: only closing and freeing are left.
 */
#ifndef ITHACA_VOLUME_H
#define ITHACA_VOLUME_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of a block. */
#define ITHACA_BLOCK_BYTES 4096
/* Most blocks of one read or write. */
#define ITHACA_BLOCKS_MAX 1024
/* What a nested commit gives as its version: nothing is committed yet. */
#define ITHACA_NO_VERSION UINT64_MAX

/* Why a call was not done. The numbers below 100 are the server's. */
enum ithaca_status {
	ITHACA_OK = 0,
	/* The server does not understand what this library says, or does not serve this connection: it is gone. */
	ITHACA_FRAME = 1,
	/* An argument that cannot be. */
	ITHACA_REQUEST = 2,
	/* Somebody else has committed what the transaction depends on, and it has ended: begin it again. */
	ITHACA_CONFLICT = 3,
	/* It was ended to make room: begin it again. If it is told by ithaca_commit, `tx` is gone; else abort it first. */
	ITHACA_PREEMPTED = 4,
	/* A transaction within it was aborted, or a write of it was refused: nothing of it will commit. */
	ITHACA_DOOMED = 5,
	/* It has ended. */
	ITHACA_ENDED = 6,
	ITHACA_NUMBER_TAKEN = 7,
	/* More blocks, transactions or snapshots than there may be. */
	ITHACA_TOO_MANY = 8,
	/* No transaction was released with this handle to this user, or it waited for too long. */
	ITHACA_NO_SUCH_HANDLE = 9,
	/* A mark of a block that was not read or written. */
	ITHACA_NOT_ACCESSED = 10,
	/* Blocks or bytes that there are not. */
	ITHACA_OUT_OF_RANGE = 11,
	/* No room is left. */
	ITHACA_NO_SPACE = 12,
	/* What the drive holds is not what was written. */
	ITHACA_DAMAGED = 13,
	/* The drive failed, or the server stops. Whether a commit is there is not known. */
	ITHACA_STOPPED = 14,
	/* No snapshot or region of this name. */
	ITHACA_NO_SUCH_SNAPSHOT = 15,
	ITHACA_BAD_NAME = 16,
	/* Nobody listens there, this user may not connect, or 64 others are connected; after ithaca_open_without_memory the first call says the latter
	 * two, by ITHACA_FRAME. */
	ITHACA_UNREACHABLE = 100,
	/* The connection ended. Whether a commit that was under way is there is not known. */
	ITHACA_LOST = 101,
	/* No memory is left. */
	ITHACA_NO_MEMORY = 102
};

/* What a transaction is held to. */
enum ithaca_isolation {
	/* As the volume says. */
	ITHACA_AS_VOLUME = 0,
	/* As if transactions had run one after the other. */
	ITHACA_SERIALIZABLE = 1,
	/* It reads one snapshot, and nobody else has written what it writes. */
	ITHACA_SNAPSHOT = 2
};

/* A connection. */
struct ithaca_volume;
/* A transaction. */
struct ithaca_tx;

/* Names a transaction that was released. It is as good as a password. ithaca_ioctl.h has it too. */
#ifndef ITHACA_HANDLE
#define ITHACA_HANDLE
struct ithaca_handle {
	uint8_t bytes[16];
};
#endif

/* What a volume is. */
struct ithaca_info {
	uint8_t id[16];
	/* Blocks of 4096 bytes. */
	uint64_t blocks;
	/* The newest version that is durable. */
	uint64_t version;
	/* The oldest version that can be read. */
	uint64_t floor;
	/* Blocks that hold data. */
	uint64_t data_blocks;
};

/* Connects to the server that listens at `path`. On success *volume is to be closed; on failure it is NULL. Takes 4 MiB of memory that the server
 * has too, and is as large as the largest read or write. A server that takes longer than ten seconds to answer is ITHACA_UNREACHABLE. */
int ithaca_open(const char *path, struct ithaca_volume **volume);

/* The same without that memory: all data goes through the socket, which takes more time. */
int ithaca_open_without_memory(const char *path, struct ithaca_volume **volume);

/* From now on a call of this connection, and of its transactions, that hears nothing from the server for so many milliseconds gives ITHACA_LOST: the
 * connection is of no use then, since the answer may come later, and what was asked for may be done or not. 0, as it is at first: calls wait for as
 * long as it takes. Signals, whose handlers return, change nothing of that. A commit waits for the drive and for room, a flush for all that was acknowledged: both may take seconds. */
int ithaca_set_timeout(struct ithaca_volume *volume, uint32_t milliseconds);

/* Ends the connection and frees it: transactions of it that were not released are aborted by the server. Those that still have a
 * struct ithaca_tx must have been freed. NULL does nothing. */
void ithaca_close(struct ithaca_volume *volume);

/* The last failure of this connection in words, "" if there was none; until the next call: ask before ithaca_abort.
 * Of ithaca_open: NULL for the volume. */
const char *ithaca_last_error(const struct ithaca_volume *volume);

/* What the volume is and holds. */
int ithaca_info(struct ithaca_volume *volume, struct ithaca_info *info);

/* From now on blocks of this connection and of its transactions are those of the region of this name: 0 is its first one, and none outside of it is
 * reached. *blocks, if `blocks` is not NULL, is how many it has. To be called before transactions begin. */
int ithaca_open_region(struct ithaca_volume *volume, const char *name, uint64_t *blocks);

/* Reads `size` bytes, a multiple of 4096, from `block` on, outside of transactions: as they are now. */
int ithaca_read(struct ithaca_volume *volume, uint64_t block, void *data, size_t size);

/* Writes `size` bytes, a multiple of 4096, from `block` on. On return it is durable, if `stable`; else others see it, and ithaca_flush makes it
 * durable. Up to 256 blocks (fewer on a small volume, as of a transaction) are one commit, which is there as a whole or not at all. More are several,
 * one after the other: others may see the first ones alone, and a crash, ITHACA_NO_SPACE or ITHACA_STOPPED may leave those. What is to be all there or
 * not at all is written in a transaction. */
int ithaca_write(struct ithaca_volume *volume, uint64_t block, const void *data, size_t size, int stable);

/* Makes everything durable that was acknowledged before, to anybody. */
int ithaca_flush(struct ithaca_volume *volume);

/* Gives blocks up: they read as zeros. `stable` as of ithaca_write. It is one commit or several, of at most 1024 blocks that held data, as there. */
int ithaca_discard(struct ithaca_volume *volume, uint64_t block, uint64_t count, int stable);

/* Asks that a block be kept in memory when it has been read: a hint. */
int ithaca_please_cache(struct ithaca_volume *volume, uint64_t block);

/* Begins a transaction. It reads the newest durable version and its own writes. On success *tx is to be ended by ithaca_commit,
 * ithaca_abort or ithaca_release; on failure it is NULL. ithaca_commit and ithaca_abort free it if its ithaca_depth was 0 before, ithaca_release
 * always: whatever they return, also ITHACA_LOST. Nothing else frees it. */
int ithaca_begin(struct ithaca_volume *volume, enum ithaca_isolation isolation, struct ithaca_tx **tx);

/* Begins a transaction within this one: its commit does nothing, its abort ends all of it. For code that brings transactions of its own. */
int ithaca_begin_nested(struct ithaca_tx *tx);

/* How many transactions within this one have begun and not ended. Each ithaca_commit and ithaca_abort ends one of them, whatever it returns; the
 * one after the last ends `tx` itself and frees it. After ithaca_takeover it is what it was when the transaction was released. */
uint32_t ithaca_depth(const struct ithaca_tx *tx);

/* Commits; on ITHACA_OK it is durable, and *version, if `version` is not NULL, is its version. Whatever is returned, a transaction that
 * is not nested has ended and `tx` is freed. A nested one gives ITHACA_NO_VERSION, and `tx` stays: its depth is one less. */
int ithaca_commit(struct ithaca_tx *tx, uint64_t *version);

/* Aborts: nothing of it is there. Whatever is returned, `tx` is freed, unless it was a nested one: then its depth is one less, and everything but
 * ends is refused from now on. Until `tx` is freed:
 *
 *     do depth = ithaca_depth(tx), ithaca_abort(tx); while (depth > 0);
 */
int ithaca_abort(struct ithaca_tx *tx);

/* Lets go of it, for somebody else to go on with: of this user, or `anyone` who knows the handle. `tx` is freed, whatever is returned. Who does
 * not take it over within 30 seconds finds it aborted. */
int ithaca_release(struct ithaca_tx *tx, int anyone, struct ithaca_handle *handle);

/* Goes on with a transaction that was released, in this process or another. As ithaca_begin; its ithaca_depth may be more than 0. */
int ithaca_takeover(struct ithaca_volume *volume, const struct ithaca_handle *handle, struct ithaca_tx **tx);

/* Reads whole blocks. The transaction depends on all of them, unless a mark follows. */
int ithaca_tx_read(struct ithaca_tx *tx, uint64_t block, void *data, size_t size);

/* Writes whole blocks, at most 256 in a transaction, and fewer on a small volume: ITHACA_TOO_MANY says so. */
int ithaca_tx_write(struct ithaca_tx *tx, uint64_t block, const void *data, size_t size);

/* Reads bytes `start` to `start + size` of one block: only on these the transaction depends. */
int ithaca_tx_read_part(struct ithaca_tx *tx, uint64_t block, size_t start, void *data, size_t size);

/* Writes them: what others make of the rest of the block meanwhile stays. */
int ithaca_tx_write_part(struct ithaca_tx *tx, uint64_t block, size_t start, const void *data, size_t size);

/* Of the last read or write of a whole block only these bytes count; marks add up. */
int ithaca_mark_accessed(struct ithaca_tx *tx, uint64_t block, size_t start, size_t size);

#ifdef __cplusplus
}
#endif

#endif
