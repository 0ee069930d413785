"""seccomp filters: the system calls that sandboxed code may make, on x86-64 and aarch64. Runs inside the sandbox.

Two filters are stacked. The first applies to the supervisor of a slot and everything below it. The second applies to
the worker; it is small because it is installed per run, and removes what only the supervisor needs: to fork, to signal
other processes, to change modes.
"""

from __future__ import annotations

import errno
import struct

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_COLUMN = {"x86_64": 1, "aarch64": 2}
_ALLOWED_SYSCALLS = """
read 0 63; write 1 64; readv 19 65; writev 20 66; pread64 17 67; pwrite64 18 68; preadv 295 69; pwritev 296 70;
preadv2 327 286; pwritev2 328 287; lseek 8 62; close 3 57; dup 32 23; dup2 33 -;
dup3 292 24; pipe 22 -; pipe2 293 59; open 2 -; openat 257 56; openat2 437 437; creat 85 -; stat 4 -; fstat 5 80;
lstat 6 -; newfstatat 262 79; statx 332 291; access 21 -; faccessat 269 48; faccessat2 439 439; readlink 89 -;
readlinkat 267 78; getdents 78 -; getdents64 217 61; getcwd 79 17; chdir 80 49; fchdir 81 50; mkdir 83 -;
mkdirat 258 34; rmdir 84 -; unlink 87 -; unlinkat 263 35; rename 82 -; renameat 264 38; renameat2 316 276;
link 86 -; linkat 265 37; symlink 88 -; symlinkat 266 36; ftruncate 77 46; fallocate 285 47; fsync 74 82;
fdatasync 75 83; sync_file_range 277 84; flock 73 32; fadvise64 221 223; copy_file_range 326 285; sendfile 40 71;
umask 95 166; statfs 137 43; fstatfs 138 44; mmap 9 222; munmap 11 215; mremap 25 216; mprotect 10 226;
madvise 28 233; brk 12 214; msync 26 227; mincore 27 232; mlock 149 228; munlock 150 229; membarrier 324 283;
futex 202 98; futex_waitv 449 449; set_robust_list 273 99; get_robust_list 274 100; rseq 334 293;
set_tid_address 218 96; arch_prctl 158 -; sched_yield 24 124; sched_getaffinity 204 123; sched_getparam 143 121;
sched_getscheduler 145 120; sched_get_priority_max 146 125; sched_get_priority_min 147 126; getcpu 309 168;
nanosleep 35 101; clock_nanosleep 230 115; clock_gettime 228 113; clock_getres 229 114; gettimeofday 96 169;
time 201 -; times 100 153; getitimer 36 102; setitimer 38 103; alarm 37 -; timerfd_create 283 85;
timerfd_settime 286 86; timerfd_gettime 287 87; eventfd 284 -; eventfd2 290 19;
epoll_create 213 -; epoll_create1 291 20; epoll_ctl 233 21; epoll_wait 232 -; epoll_pwait 281 22;
epoll_pwait2 441 441; poll 7 -; ppoll 271 73; select 23 -; pselect6 270 72; rt_sigaction 13 134;
rt_sigprocmask 14 135; rt_sigreturn 15 139; rt_sigsuspend 130 133; rt_sigpending 127 136;
rt_sigtimedwait 128 137; sigaltstack 131 132; restart_syscall 219 128; pause 34 -; getpid 39 172; gettid 186 178;
getppid 110 173; getpgrp 111 -; getpgid 121 155; getsid 124 156; getuid 102 174; geteuid 107 175; getgid 104 176;
getegid 108 177; getresuid 118 148; getresgid 120 150; getgroups 115 158; getpriority 140 141; getrusage 98 165;
getrlimit 97 163; setrlimit 160 164; sysinfo 99 179; uname 63 160; getrandom 318 278; exit 60 93;
exit_group 231 94; wait4 61 260; waitid 247 95; setsid 112 157; setpgid 109 154
"""
"""Calls that are allowed with any arguments: name, number on x86-64, number on aarch64 ("-": does not exist)."""

_FILTERED_SYSCALLS = """
kill 62 129; tgkill 234 131; fcntl 72 25; ioctl 16 29; prlimit64 302 261; clone 56 220; fork 57 -; vfork 58 -
chmod 90 -; fchmod 91 52; fchmodat 268 53; prctl 157 167; pidfd_open 434 434; clone3 435 435; seccomp 317 277
landlock_create_ruleset 444 444; landlock_add_rule 445 445; landlock_restrict_self 446 446; unshare 272 97
socket 41 198; socketpair 53 199; sendto 44 206; recvfrom 45 207; close_range 436 436
mount 165 40; umount2 166 39; pivot_root 155 41; mount_setattr 442 442; capset 126 91; setns 308 268
"""
"""Calls whose arguments are checked, or that only the setup makes."""

_PRIVILEGED_SYSCALLS = """
mount 165 40; umount2 166 39; pivot_root 155 41; mount_setattr 442 442; setns 308 268; unshare 272 97; chroot 161 51
open_tree 428 428; move_mount 429 429; fsopen 430 430; fsconfig 431 431; fsmount 432 432; fspick 433 433
ptrace 101 117; process_vm_readv 310 270; process_vm_writev 311 271; kcmp 312 272; process_madvise 440 440
bpf 321 280; perf_event_open 298 241; userfaultfd 323 282; io_uring_setup 425 425; io_uring_enter 426 426
io_uring_register 427 427; add_key 248 217; request_key 249 218; keyctl 250 219; personality 135 92
init_module 175 105; finit_module 313 273; delete_module 176 106; kexec_load 246 104; kexec_file_load 320 294
name_to_handle_at 303 264; open_by_handle_at 304 265; acct 163 89; swapon 167 224; swapoff 168 225; reboot 169 142
quotactl 179 60; syslog 103 116; vmsplice 278 75; mbind 237 235; move_pages 279 239; migrate_pages 256 238
"""
"""Calls that no program in a container may make: for administration, or with a history of bugs that led out."""

_NEWEST = 450
"""From this number on, calls fail as on an older kernel (ENOSYS): the C library then falls back to older calls."""
_NAMESPACE_FLAGS = 0x7E020080
_FORBIDDEN_CLONE_FLAGS = _NAMESPACE_FLAGS | 0x8000 | 0x2000 | 0x800000
"""Flags of clone: namespaces, CLONE_PARENT, CLONE_PTRACE, CLONE_UNTRACED."""
_CLONE_THREAD, _CLONE_FILES = 0x10000, 0x400
_FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030)
"""Commands of fcntl: descriptors, flags, locks. Not owners and signals (which can signal others), nor pipe sizes."""
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""Requests of ioctl: TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""

PID_PLACEHOLDER = 0x7ABCDEF1
"""In the worker filter, the process id of the worker: larger than any process id."""

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_REFUSE, _UNKNOWN = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
_NUMBER, _ARCH, _FIRST, _SECOND, _THIRD, _FOURTH, _FIFTH = 0, 4, 16, 24, 32, 40, 48
"""Offsets in `struct seccomp_data`: call number, architecture, low words of arguments."""
_MSG_OOB = 1
_UNIX = 1
_FAMILIES = (_UNIX, 2, 10, 16)
"""Address families of programs: also IPv4, IPv6 and netlink, which a namespace confines. It does not confine VSOCK."""


def is_supported(machine: str) -> bool:
    """Whether there is a table for a processor type, as `platform.machine()` names it."""
    return machine in _COLUMN


def syscall_number(name: str, machine: str) -> int:
    """Look up the number of a system call.

    Raises:
        KeyError: the machine or the call is not in the tables.
    """
    return _numbers(_FILTERED_SYSCALLS, machine)[name]


def supervisor_filter(machine: str) -> bytes:
    """Build the filter of a supervisor: an allow-list; other calls fail with EPERM."""
    filtered = _numbers(_FILTERED_SYSCALLS, machine)
    program = [_step(_LOAD, _ARCH), _step(_JUMP_EQUAL, _AUDIT_ARCH[machine], 1, 0), _step(_RETURN, _KILL)]
    program.append(_step(_LOAD, _NUMBER))
    for call in _numbers(_ALLOWED_SYSCALLS, machine).values():
        program += _when(call, [_step(_RETURN, _ALLOW)])
    for name in ("kill", "tgkill", "fork", "vfork", "chmod", "fchmod", "fchmodat", "prctl", "pidfd_open"):
        if name in filtered:
            program += _when(filtered[name], [_step(_RETURN, _ALLOW)])
    program += _when(filtered["fcntl"], _only(_SECOND, _FCNTL))
    program += _when(filtered["ioctl"], _only(_SECOND, _IOCTL))
    program += _when(filtered["prlimit64"], _only(_FIRST, (0,)))
    # Event loops wake themselves through a pair of sockets within the process: allowed without an address to send to.
    program += _when(filtered["socketpair"], _only(_FIRST, (_UNIX,)))
    # Out-of-band data is rarely used code of the kernel, with bugs that led out of other sandboxes.
    in_band = [_step(_LOAD, _FOURTH), _step(_JUMP_ANY_BIT, _MSG_OOB, 0, 1), _step(_RETURN, _REFUSE)]
    in_band.append(_step(_RETURN, _ALLOW))
    program += _when(filtered["recvfrom"], in_band)
    program += _when(filtered["sendto"], _only(_FIFTH, (0,), then=_only(_FIFTH + 4, (0,), then=in_band)))
    program += _when(filtered["close_range"], _only(_THIRD, (0, 4)))  # not CLOSE_RANGE_UNSHARE: see `worker_filter`
    plain_clone = [_step(_LOAD, _FIRST), _step(_JUMP_ANY_BIT, _FORBIDDEN_CLONE_FLAGS, 1, 0), _step(_RETURN, _ALLOW)]
    program += _when(filtered["clone"], [*plain_clone, _step(_RETURN, _REFUSE)])
    program += _when(filtered["clone3"], [_step(_RETURN, _UNKNOWN)])
    program += [_step(_JUMP_AT_LEAST, _NEWEST, 0, 1), _step(_RETURN, _UNKNOWN), _step(_RETURN, _REFUSE)]
    return b"".join(program)


def worker_filter(machine: str, *, threads: bool) -> bytes:
    """Build the second filter: no new processes, no signals except to `PID_PLACEHOLDER`, no changes of modes."""
    filtered = _numbers(_FILTERED_SYSCALLS, machine)
    program = [_step(_LOAD, _NUMBER)]
    for name in ("fork", "vfork", "chmod", "fchmod", "fchmodat", "prctl", "pidfd_open"):
        if name in filtered:
            program += _when(filtered[name], [_step(_RETURN, _REFUSE)])
    for name in ("kill", "tgkill"):
        program += _when(filtered[name], _only(_FIRST, (PID_PLACEHOLDER,)))
    # A thread shares the table of descriptors, as those of the C library do: a table of its own would hold another 64
    # descriptors with full buffers of sockets and pipes, memory of the kernel that no limit counts.
    new_thread = [_step(_LOAD, _FIRST), _step(_JUMP_ANY_BIT, _CLONE_THREAD, 0, 2)]
    new_thread += [_step(_JUMP_ANY_BIT, _CLONE_FILES, 0, 1), _step(_RETURN, _ALLOW)]
    program += _when(filtered["clone"], [*(new_thread if threads else []), _step(_RETURN, _REFUSE)])
    program.append(_step(_RETURN, _ALLOW))
    return b"".join(program)


def program_filter(machine: str) -> bytes:
    """Build the filter of a container, in which any program runs: all calls but the privileged ones, which fail."""
    program = [_step(_LOAD, _ARCH), _step(_JUMP_EQUAL, _AUDIT_ARCH[machine], 1, 0), _step(_RETURN, _KILL)]
    program.append(_step(_LOAD, _NUMBER))
    for call in _numbers(_PRIVILEGED_SYSCALLS, machine).values():
        program += _when(call, [_step(_RETURN, _REFUSE)])
    filtered = _numbers(_FILTERED_SYSCALLS, machine)
    new_namespace = [_step(_LOAD, _FIRST), _step(_JUMP_ANY_BIT, _NAMESPACE_FLAGS, 1, 0), _step(_RETURN, _ALLOW)]
    program += _when(filtered["clone"], [*new_namespace, _step(_RETURN, _REFUSE)])
    program += _when(filtered["clone3"], [_step(_RETURN, _UNKNOWN)])  # its flags are in memory; clone is called then
    program += _when(filtered["prlimit64"], _only(_FIRST, (0,)))  # else it could end the first process by a limit
    for name in ("socket", "socketpair"):
        program += _when(filtered[name], _only(_FIRST, _FAMILIES))
    # Later calls are unknown here. On x86-64 so are those of a second table, with numbers from 0x40000000.
    program += [_step(_JUMP_AT_LEAST, _NEWEST, 0, 1), _step(_RETURN, _UNKNOWN), _step(_RETURN, _ALLOW)]
    return b"".join(program)


def for_process(program: bytes, pid: int) -> bytes:
    """Fill the process id of a worker into its filter."""
    return program.replace(struct.pack("=I", PID_PLACEHOLDER), struct.pack("=I", pid))


def _numbers(table: str, machine: str) -> dict[str, int]:
    rows = (entry.split() for entry in table.replace(";", "\n").splitlines() if entry.strip())
    column = _COLUMN[machine]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _when(call: int, steps: list[bytes]) -> list[bytes]:
    """Run `steps`, which end in a return, for one call; for others the number stays loaded for the next check."""
    return [_step(_JUMP_EQUAL, call, 0, len(steps)), *steps]


def _only(word: int, values: tuple[int, ...], then: list[bytes] | None = None) -> list[bytes]:
    """Allow a call, or continue with `then`, if a word of its arguments is one of `values`; else refuse it."""
    count = len(values)
    checks = [_step(_JUMP_EQUAL, value, count - position, 0) for position, value in enumerate(values)]
    return [_step(_LOAD, word), *checks, _step(_RETURN, _REFUSE), *(then or [_step(_RETURN, _ALLOW)])]
