"""Containers: what programs in them can do, cannot do, and leave behind."""

from __future__ import annotations

import io
import multiprocessing
import os
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent_r1_gym.errors import InfrastructureError
from agent_r1_gym.sandbox.container import Container, containers_unavailable
from agent_r1_gym.sandbox.linux.container import FOLDERS, Programs
from tests.kit.processes import has_become, kill_at_its_first_line

pytestmark = pytest.mark.skipif(bool(containers_unavailable()), reason=containers_unavailable())


@pytest.fixture
def container():
    with Container() as made:
        yield made


def bash(container, command, **options):
    return container.run(["bash", "-c", command], **options)


def is_running(pid):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


class TestPrograms:
    def test_output_exit_status_and_files_are_those_of_a_shell(self, container):
        first = bash(container, "echo out; echo err >&2; echo kept > file; exit 3")
        assert (first.exit_code, first.output, first.timed_out) == (3, "out\nerr\n", False)
        assert bash(container, "cat file; echo $WORD; pwd", environment={"WORD": "é"}).output == "kept\né\n/app\n"
        assert bash(container, "pwd", folder="/tmp").output == "/tmp\n"
        assert bash(container, "python3 -c 'import json, sys; print(sys.version_info[0])'").output == "3\n"
        assert bash(container, "printf '#!/bin/sh\necho ran' > x; chmod +x x; ./x").output == "ran\n"

    def test_a_program_that_runs_too_long_is_killed(self, container):
        large = 'python3 -c \'import time; x = b"x" * 600_000_000; print("begin", flush=True); time.sleep(60)\''
        result = bash(container, f"trap '' TERM; {large} & sleep 60", seconds=3)
        assert (result.timed_out, result.output) == (True, "begin\n")
        assert bash(container, "ps ax | grep -c '[p]ython3'").output == "0\n"  # what is large takes a moment to die
        assert bash(container, "ps ax | grep -c '[s]leep'").output == "0\n"

    def test_a_program_in_the_background_goes_on_until_it_is_stopped(self, container):
        bash(container, "setsid sleep 60 > /dev/null 2>&1 &\nsetsid sleep 61 &")
        assert bash(container, "ps ax | grep -c '[s]leep'").output == "2\n"
        container.stop_programs()
        assert bash(container, "ps ax | grep -c '[s]leep'").output == "0\n"

    def test_output_is_cut(self, container):
        result = bash(container, "head -c 3000000 /dev/zero | tr '\\0' x", max_output=100)
        assert result.output == "x" * 100 + "\n... [cut, 3000000 bytes in all]"
        assert bash(container, "printf '\\xff\\x00'").output == "\ufffd\0"

    def test_a_missing_program_or_folder_is_an_os_error(self, container):
        with pytest.raises(OSError, match="no-such-program"):
            container.run(["no-such-program"])
        with pytest.raises(OSError, match="no-such-folder"):
            bash(container, "true", folder="/no-such-folder")
        assert bash(container, "echo alive").output == "alive\n"


class TestFiles:
    def test_files_are_copied_in_and_read(self, container, tmp_path):
        (tmp_path / "a" / "b").mkdir(parents=True)
        (tmp_path / "a" / "run.sh").write_text("echo ran")
        (tmp_path / "a" / "run.sh").chmod(0o755)
        (tmp_path / "a" / "b" / "data").write_bytes(b"\0\xff")
        container.copy_in(tmp_path / "a", "/srv/deep/folder")
        container.copy_in(tmp_path / "a" / "run.sh", "/top.sh")
        assert container.read("/srv/deep/folder/b/data") == b"\0\xff"
        assert bash(container, "sh /top.sh; /srv/deep/folder/run.sh || sh /srv/deep/folder/run.sh").exit_code == 0
        assert container.read("/none") is None
        assert container.read("/srv") is None
        bash(container, "mkfifo pipe; ln -s /dev/zero zero")
        assert container.read("/app/pipe") is None
        assert container.read("/app/zero") is None

    @pytest.mark.parametrize("left", ["mkdir x", "echo 1 > x", "ln -s /app/other x", "mkdir -p x/y; chmod 0 x/y x"])
    def test_a_folder_is_replaced_whatever_a_program_left_there(self, container, tmp_path, left):
        (tmp_path / "new").write_text("new")
        bash(container, f"mkdir other; echo > other/kept; {left}; mkdir -p x; echo > x/old")
        container.copy_in(tmp_path, "/app/x", replace=True)
        assert bash(container, "ls x; ls other").output.split()[0] == "new"
        assert "old" not in bash(container, "ls x").output

    def test_python_before_3_11_4_unpacks_them_without_filters(self, tmp_path, monkeypatch):
        packed, unpack = io.BytesIO(), tarfile.TarFile.extractall
        (tmp_path / "old").write_text("ran")
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.add(tmp_path / "old", "new")
        monkeypatch.delattr(tarfile, "tar_filter", raising=False)
        monkeypatch.setattr(tarfile.TarFile, "extractall", lambda archive, path: unpack(archive, path))
        Programs._write(object.__new__(Programs), packed.getvalue(), str(tmp_path / "folder"), replace=False)
        assert (tmp_path / "folder" / "new").read_text() == "ran"

    def test_the_disk_is_limited(self):
        with Container(disk=8 * 2**20) as container:
            assert "No space left" in bash(container, "head -c 10000000 /dev/zero > big").output


class TestConfinement:
    def test_the_host_is_out_of_reach(self, container, tmp_path):
        secret = tmp_path / "secret"
        secret.write_text("secret")
        secret.chmod(0o644)
        attacks = {
            f"cat {secret}": "No such file",
            "cat /etc/shadow": "No such file",
            "echo > /usr/bin/x": "Read-only",
            "echo > /etc/ld.so.preload": "Read-only",
            "cat /proc/1/environ": "denied",
            "mount -t tmpfs none /mnt": "must be superuser",
            "unshare -r true": "not permitted",
            f"kill -9 {os.getpid()}": "No such process",
            "echo > /proc/sys/kernel/hostname": "denied",
            "python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 80), 2)'": "unreachable",
            "python3 -c 'import ctypes; print(ctypes.CDLL(None, use_errno=True).ptrace(16, 1, 0, 0))'": "-1",
        }
        for attack, refusal in attacks.items():
            assert refusal in bash(container, attack).output, attack
        assert bash(container, "id -u; ls /home /root").output.split()[0] != "0"

    def test_what_the_host_brings_can_be_neither_moved_nor_replaced(self, container):
        """Else the programs that test the work would be the agent's."""
        python = bash(container, "dirname $(which python3)").output.strip()
        above = ["/".join(python.split("/")[:depth]) for depth in range(2, python.count("/") + 2)]
        for folder in ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/usr", "/etc", "/dev", "/proc", *above):
            move = f'python3 -c \'import os; os.rename("{folder}", "/elsewhere")\''
            assert bash(container, f"({move}; rm -rf {folder}) 2> /dev/null; ls -d {folder}").output == f"{folder}\n"
            assert folder in FOLDERS or bash(container, f"echo > {folder}/x").exit_code, folder
        assert bash(container, "/bin/sh -c 'python3 -c \"print(1)\"' < /dev/null").output == "1\n"
        assert bash(container, "echo 1 > /dev/shm/x; echo 1 > /new; cat /dev/shm/x /new").output == "1\n1\n"

    def test_sockets_of_a_hypervisor_are_refused(self, container):
        made = "python3 -c 'import socket; socket.socket({})'"
        assert "not permitted" in bash(container, made.format("40, socket.SOCK_STREAM")).output
        for family in ("AF_UNIX", "AF_INET", "AF_INET6"):
            assert bash(container, made.format(f"socket.{family}")).exit_code == 0

    def test_a_container_has_processes_of_its_own(self, container):
        with Container() as other, ThreadPoolExecutor(1) as pool:
            busy = pool.submit(bash, other, "for i in $(seq 300); do sleep 2 & done 2> /dev/null; sleep 1")
            for _ in range(5):
                assert (
                    bash(container, "sleep .1; for i in $(seq 30); do sleep 0 & done; wait; echo ran").output == "ran\n"
                )
            busy.result()

    def test_a_program_does_not_end_the_container(self, container):
        bash(container, "kill -9 1; kill -9 -1; exit 0")
        bash(container, "prlimit --pid 1 --cpu=1:1; timeout 3 cat /dev/zero > /dev/null")
        bash(container, ":(){ :|:& };:", seconds=0.3)
        container.stop_programs()
        assert bash(container, "echo alive").output == "alive\n"

    def test_memory_is_limited(self):
        with Container(memory=2**29) as container:
            assert "MemoryError" in bash(container, "python3 -c 'bytearray(2**30)'").output

    def test_the_environment_of_the_host_is_not_passed_on(self, container, monkeypatch):
        monkeypatch.setenv("SECRET_KEY", "sk-1")
        with Container() as other:
            assert "sk-1" not in bash(other, "env; cat /proc/self/environ").output


class TestEnd:
    def test_nothing_is_left_after_close(self):
        container = Container()
        pid = container._process.pid
        bash(container, "setsid sleep 600 &")
        container.close()
        container.close()
        assert has_become(lambda: not is_running(pid), 10)
        with pytest.raises(InfrastructureError, match="ended"):
            bash(container, "true")

    def test_nothing_is_left_after_a_kill_even_during_a_program(self):
        code = (
            "import threading, time\nfrom agent_r1_gym.sandbox.container import Container\n"
            "made = Container()\n"
            "threading.Thread(target=made.run, args=(['sleep', '600'],), kwargs={'seconds': 600}).start()\n"
            "time.sleep(.2)\nprint(made._process.pid, flush=True)\n"
        )
        pid = int(kill_at_its_first_line(code))
        assert has_become(lambda: not is_running(pid), 10)

    def test_a_container_that_dies_is_an_infrastructure_failure(self, container):
        os.killpg(container._process.pid, 9)
        with pytest.raises(InfrastructureError, match=r"ended|answer"):
            bash(container, "true")

    def test_a_container_outlives_the_thread_that_started_it(self):
        with ThreadPoolExecutor(1) as pool:
            container = pool.submit(Container).result()
        assert bash(container, "echo alive").output == "alive\n"
        container.close()

    def test_a_fork_cannot_use_it_and_does_not_end_it(self, container):
        def child(pipe):
            try:
                bash(container, "true")
            except InfrastructureError as error:
                pipe.send(str(error))
            container.close()

        mine, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=child, args=(theirs,))
        process.start()
        assert mine.poll(30)
        assert "parent" in mine.recv()
        process.join()
        assert bash(container, "echo alive").output == "alive\n"
