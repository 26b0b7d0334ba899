/* SPDX-License-Identifier: Apache-2.0
 *
 * Transactions on a volume of Ithaca that is mounted as a file, for C programs.
 *
 * `ithaca volume mount DIR FILE` shows a volume as a file. A thread begins a transaction by a control call on it, reads and writes it
 * with pread and pwrite, and ends the transaction: all of what it has written is there, durable, or nothing. A transaction belongs to
 * the thread that began it, whichever descriptor of the file it uses. docs/protocol/file.md says what each call promises.
 *
 *     int disk = open("disk.img", O_RDWR);
 *     struct ithaca_begin begin = { ITHACA_BEGIN_AS_VOLUME, ITHACA_BEGIN_STABLE };
 *     do {
 *             if (ioctl(disk, ITHACA_BEGIN, &begin) != 0)
 *                     return 1;       -- what follows would be written at once, as by a thread without a transaction
 *             if (pread(disk, block, sizeof block, 0) != sizeof block) {
 *                     ioctl(disk, ITHACA_ABORT);
 *                     return 1;       -- `block` holds nothing to go on with; after ECANCELED it may be begun again
 *             }
 *             pwrite(disk, block, sizeof block, 0);   -- if it is refused, so is the end
 *             result = ioctl(disk, ITHACA_END, &version);
 *     } while (result != 0 && errno == EAGAIN);
 *
 * Each call returns 0, or -1 and says in errno why it was not done:
 *   EAGAIN     of ITHACA_END: somebody else has committed what the transaction depends on, or it was ended to make room. It has
 *              ended: begin it again.
 *   ECANCELED  of reads, writes and calls within it: it was ended to make room, or one within it was aborted. End or abort it.
 *              Of ITHACA_END: one within it was aborted, or a write, a hole, zeros or a begin in it was refused. It has ended.
 *   EINVAL     the thread is in no transaction, or a field cannot be.
 *   EPERM      of ITHACA_BEGIN and ITHACA_TAKE_OVER: the server's system does not name the thread: it is in another PID namespace, or the
 *              server is short of descriptors to ask with.
 *   EBUSY      of ITHACA_TAKE_OVER: the thread is in a transaction. Of ITHACA_RELEASE: reads or writes of it are under way.
 *   ENOENT     of ITHACA_TAKE_OVER: nothing was released with this handle to this user, or it waited for too long.
 *   ENOSPC     no room is left, or the transaction reads or writes more blocks than one may.
 *   EMFILE     more transactions, or more within each other, than there may be.
 *   EIO        the volume failed; of ITHACA_END it is not known whether the transaction is there.
 *   ENOTTY     the file is no volume.
 */
#ifndef ITHACA_IOCTL_H
#define ITHACA_IOCTL_H

#include <stdint.h>
#include <sys/ioctl.h>

/* What a transaction is held to: ithaca_begin.isolation. */
#define ITHACA_BEGIN_AS_VOLUME 0
#define ITHACA_BEGIN_SERIALIZABLE 1
#define ITHACA_BEGIN_SNAPSHOT 2
/* When its end returns: ithaca_begin.durability. */
#define ITHACA_BEGIN_STABLE 0
#define ITHACA_BEGIN_ACKNOWLEDGED 1
/* Who may take over what was released: ithaca_released.heir. */
#define ITHACA_HEIR_USER 0
#define ITHACA_HEIR_ANYONE 1
/* What ITHACA_END gives as its version within another transaction: nothing is committed yet. */
#define ITHACA_END_NO_VERSION UINT64_MAX

struct ithaca_begin {
	uint32_t isolation;
	uint32_t durability;
};

/* Names a transaction that was released. ithaca_volume.h has it too. */
#ifndef ITHACA_HANDLE
#define ITHACA_HANDLE
struct ithaca_handle {
	uint8_t bytes[16];
};
#endif

struct ithaca_released {
	/* Given. */
	struct ithaca_handle handle;
	/* Asked for. */
	uint32_t heir;
	uint32_t reserved;
};

struct ithaca_accessed {
	/* A block of 4096 bytes, by its number, and which of its bytes: first to end, without end. */
	uint64_t block;
	uint32_t first;
	uint32_t end;
};

/* Begins a transaction, or one within that of the thread, which is then part of it. */
#define ITHACA_BEGIN _IOW(0xB1, 1, struct ithaca_begin)
/* Ends it: commits, and says which version that is. */
#define ITHACA_END _IOR(0xB1, 2, uint64_t)
/* Ends it with nothing of it done. */
#define ITHACA_ABORT _IO(0xB1, 3)
/* Lets go of it: another thread goes on with it by its handle, within 30 seconds. Refused, the thread is in it still. */
#define ITHACA_RELEASE _IOWR(0xB1, 4, struct ithaca_released)
/* Goes on with a transaction that was released. */
#define ITHACA_TAKE_OVER _IOW(0xB1, 5, struct ithaca_handle)
/* Of a block that was read or written whole, only these bytes count. Several calls add up. */
#define ITHACA_MARK_ACCESSED _IOW(0xB1, 6, struct ithaca_accessed)
/* Asks for a block, by its number, to be kept in memory. */
#define ITHACA_PLEASE_CACHE _IOW(0xB1, 7, uint64_t)

#endif
