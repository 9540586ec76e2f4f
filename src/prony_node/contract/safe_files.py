"""Files in folders that other users may write to, opened safely; and texts without what looks like a secret."""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import pwd
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from prony_node.contract.errors import is_digits

# Opening files safely in folders that other users may write to, and who these users are.


def user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def group_name(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def who_can_replace(folder: Path) -> str | None:
    """Which other users may rename and replace what this one makes in a folder; None where nobody may."""
    try:
        found = folder.stat()
    except OSError:
        return None
    if found.st_mode & stat.S_ISVTX:  # each user renames and removes their own
        return None
    if found.st_mode & stat.S_IWOTH:
        return "any user"
    if found.st_mode & stat.S_IWGRP and not is_own_group(found.st_gid):
        return f"every member of group {group_name(found.st_gid)}"
    return None


def is_own_group(number: int) -> bool:
    """Whether this is the group that many systems give each user, of the same name and without other members."""
    try:
        user, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(number)
    except KeyError:
        return False
    return group.gr_name == user and set(group.gr_mem) <= {user}


READ_LIMIT = 64 * 2**20  # bytes of a document; the longest step series that Prony writes is a fraction of it
JOB = "job.json"  # what a job executes, in its folder
JOBS = ".jobs"  # of a root: the jobs of its first user; a name that no list of runs looks into
IS_JOBS = re.compile(rf"{re.escape(JOBS)}(-[0-9]+)?")  # with the user id, those of each further one
SHARED_MARK = ".shared"  # the mark of a root that is shared with the group of its folder
SHARED_TEXT = "Shared with the group of this folder by `prony store share`. Without this file it is not.\n"
# What a group may do in a shared root: add to it (sticky: each renames and removes their own), lock, and read runs.
GROUP_ADDS = stat.S_ISGID | stat.S_ISVTX | stat.S_IRWXG
GROUP_LOCKS = stat.S_IRGRP | stat.S_IWGRP
GROUP_READS_FOLDER = stat.S_ISGID | stat.S_IRGRP | stat.S_IXGRP
GROUP_READS_FILE = stat.S_IRGRP
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
SAMPLES_LIMIT = 2**30  # bytes of power samples: a day of eight devices
LONGEST_LINE = 2**20  # bytes
MOST_TIMES, UNPACKED_FREELY = 100, 64 * 2**20  # unpacked over packed size; bytes that are free of it
MOST_LEVELS = 16  # levels of folders in a run folder that are looked into; Prony makes two
_IN_A_RUN = re.compile(r".*/(rank\d+|try|walk)|walk/\d+", re.DOTALL)  # a folder in a run folder, with the one above
_SAFELY = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


class NotPlain(OSError):
    """Something other than a regular file of reasonable size and owner lies under this name."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(errno.EPERM, reason, str(path))


def open_plain(path: Path | str, flags: int = os.O_RDONLY, mode: int = 0o666, folder: int | None = None) -> int:
    """A descriptor of a regular file. With the descriptor of its folder, only the last part of the path is used."""
    name = path if folder is None else Path(path).name
    try:
        file = os.open(name, flags & ~os.O_TRUNC | _SAFELY, mode, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotPlain(path, "it is a symbolic link, and none is followed here") from error
        if error.errno == errno.ENXIO:  # to write to a FIFO without a reader, or to a socket
            raise NotPlain(path, "it is no regular file") from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise NotPlain(path, "it is no regular file")
        os.set_blocking(file, True)
    except BaseException:
        os.close(file)
        raise
    return file


def read_plain(path: Path | str, limit: int = READ_LIMIT, folder: int | None = None) -> bytes:
    """All of a regular file; NotPlain when it is none, or longer than the limit."""
    return read_open(open_plain(path, folder=folder), path, limit)


def read_open(handle: int, path: Path | str, limit: int = READ_LIMIT) -> bytes:
    """All of a file that `open_plain` opened, which is closed; NotPlain when it is longer than the limit."""
    with os.fdopen(handle, "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise NotPlain(path, f"it is longer than {limit / 2**20:,.0f} MiB")
    return content


def most_unpacked(packed_bytes: int) -> int:
    """How many bytes so many packed ones may unpack to: what gives more was made to fill a memory or a disk."""
    return max(UNPACKED_FREELY, MOST_TIMES * packed_bytes)


def is_shared(root: Path) -> bool:
    """Whether the owner of this root, or root, has shared it with its group."""
    try:
        with open_folder(root) as folder:
            return is_shared_at(folder)
    except OSError:
        return False


def is_shared_at(folder: int) -> bool:
    """Whether the root that this is a descriptor of is shared."""
    try:
        found, mark = os.fstat(folder), open_plain(SHARED_MARK, folder=folder)
        owner, text = os.fstat(mark).st_uid, read_open(mark, SHARED_MARK, len(SHARED_TEXT))
    except OSError:
        return False
    # A member could rename one of the owner's files to the mark, so its text is compared too.
    return found.st_mode & GROUP_ADDS == GROUP_ADDS and owner in (found.st_uid, 0) and text == SHARED_TEXT.encode()


def is_in_shared(folder: Path) -> bool:
    """Whether this folder is a shared root, or one that Prony made in one: the screenings of a search."""
    return is_shared(folder) or is_shared(folder.parent)


def group_reads(folder: Path) -> bool:
    """Whether a folder in a shared root is for its group to look into."""
    mode = folder.stat().st_mode
    return bool(mode & stat.S_ISGID and mode & stat.S_IRGRP)


def is_exposed(folder: Path) -> bool:
    """Whether somebody else than this user may put files there."""
    found = folder.stat()
    return found.st_uid != os.geteuid() or bool(found.st_mode & OTHERS_WRITE)


def others_may(found: os.stat_result, what: int) -> bool:
    """Whether somebody else than the owner and root may do this (os.W_OK, os.X_OK) with a file or folder."""
    by_group = found.st_mode >> 3 & what and not is_own_group(found.st_gid)
    return bool(found.st_mode & what or by_group)


def make_own_folder(folder: Path) -> None:
    """A folder that nobody else can write to, rename or replace, made where it is missing; NotPlain if others can."""
    make_way(folder.absolute().parent)
    make_folder_alone(folder)


def make_folder_alone(folder: Path) -> None:
    """A folder that nobody else can write to, in one that is safe. Someone may have made it before us."""
    folder.mkdir(0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or others_may(found, os.W_OK):
        raise NotPlain(folder, "it is not yours alone")


def make_way(path: Path) -> bool:
    """Make the missing folders of an absolute path, for this user alone; whether others are kept out of its end.

    NotPlain where somebody else could put another folder in the place of one on the way, links included.
    """
    # In a user namespace root may have any number; the owner of / is root there too.
    trusted = {os.geteuid(), 0, Path("/").stat().st_uid}
    is_closed = False
    for one in [*reversed(path.parents), path]:
        try:
            found = one.lstat()
        except FileNotFoundError:
            one.mkdir(0o700, exist_ok=True)
            found = one.lstat()
        if found.st_uid not in trusted:
            raise NotPlain(path, f"{one} belongs to user {found.st_uid}")
        if stat.S_ISLNK(found.st_mode):
            is_closed = make_way(one.parent / one.readlink())
            continue
        if not is_closed and others_may(found, os.W_OK) and not found.st_mode & stat.S_ISVTX:
            raise NotPlain(path, f"others can write to {one}")
        is_closed = is_closed or not others_may(found, os.X_OK)
    return is_closed


def check_owner(path: Path | str, found: os.stat_result, root: os.stat_result, shared: bool) -> None:
    """Raise NotPlain unless the owner of this file is trusted in this root."""
    if found.st_uid in (os.geteuid(), 0, root.st_uid) or (shared and found.st_gid == root.st_gid):
        return
    raise NotPlain(
        path,
        f"it belongs to user {found.st_uid}, who does not own this folder; "
        "the owner of the folder can share it with a group: prony store share",
    )


def open_lock(root: Path, name: str) -> int:
    """The file of a lock in a root, made where it is not there. One that is there is neither emptied nor changed."""
    shared = is_in_shared(root)
    with open_folder(root) as folder:
        file = _make_file(name, folder, shared)
        file = open_plain(name, os.O_RDWR, folder=folder) if file is None else file
        try:
            check_owner(root / name, os.fstat(file), os.fstat(folder), shared)
        except BaseException:
            os.close(file)
            raise
    return file


def _make_file(name: str, folder: int, shared: bool) -> int | None:
    """A descriptor of a new file, for this user and in a shared root the group; None where there is one already.

    Nobody else may open it: who can read a lock file can hold its lock.
    """
    try:
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _SAFELY, 0o600, dir_fd=folder)
    except FileExistsError:
        return None
    if os.geteuid() == 0:  # an administrator's look at a root must not leave what its owner cannot write to
        with contextlib.suppress(OSError):
            os.fchown(file, os.fstat(folder).st_uid, -1)
    if shared:
        os.fchmod(file, stat.S_IMODE(os.fstat(file).st_mode) | GROUP_LOCKS)
    return file


def make_file(path: Path) -> None:
    """An empty file, unless something of this name is there."""
    with open_folder(path.parent) as folder:
        file = _make_file(path.name, folder, shared=False)
        if file is not None:
            os.close(file)


def plain_lines(path: Path, limit: int = READ_LIMIT) -> Iterator[str]:
    """The lines of a file of a run folder, each as it comes; NotPlain where it is no regular file, or too long."""
    with os.fdopen(open_in_run(path), "rb") as file:
        yield from bounded_lines(file, path, limit)


def bounded_lines(file: IO[bytes], path: Path | str, limit: int) -> Iterator[str]:
    """The lines of a stream of at most so many bytes: a packed stream may unpack without end."""
    left = limit
    while line := file.readline(LONGEST_LINE + 1):
        left -= len(line)
        if left < 0 or len(line) > LONGEST_LINE:
            raise NotPlain(path, f"it has more than {limit / 2**20:,.0f} MiB, or a line of more than 1 MiB")
        yield line.decode("utf-8", "replace")


@contextlib.contextmanager
def open_folder(root: Path, *names: str) -> Iterator[int]:
    """A descriptor of a folder below `root`, each name opened in the one before. `root` itself may be a link."""
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names:
            try:
                below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=handle)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise NotPlain(root.joinpath(*names), f"{name} is no folder, or a symbolic link") from error
                raise
            os.close(handle)
            handle = below
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def open_run_folder(folder: Path) -> Iterator[int]:
    """A descriptor of a run folder, or of a folder in one. No link is followed from the root of the runs on."""
    names = [folder.name] if folder.name else []
    while names and _IN_A_RUN.fullmatch(f"{folder.parent.name}/{names[0]}") and folder.parent.name:
        folder = folder.parent
        names.insert(0, folder.name)
    with open_folder(folder.parent if names else folder, *names) as handle:
        yield handle


def open_in_run(path: Path) -> int:
    """A descriptor of a regular file of a run folder, to read it."""
    with open_run_folder(path.parent) as folder:
        return open_plain(path, folder=folder)


def read_in_run(path: Path, limit: int = READ_LIMIT) -> bytes:
    """All of a regular file of a run folder; NotPlain when it is none, or longer than the limit."""
    return read_open(open_in_run(path), path, limit)


def stat_in_run(path: Path) -> os.stat_result:
    """The size and times of what has this name in a run folder, be it a link."""
    with open_run_folder(path.parent) as folder:
        return os.stat(path.name, dir_fd=folder, follow_symlinks=False)


@dataclass(frozen=True)
class RunEntry:
    """Something below a run folder."""

    name: str  # with those of the folders in between: rank1/steps.csv
    folder: int  # a descriptor of the folder that it lies in, until the next one is asked for
    status: os.stat_result  # of a link, not of what it leads to


def walk_run(folder: Path) -> Iterator[RunEntry]:
    """All that lies in a run folder, in the order of the names."""
    with open_run_folder(folder) as top:
        yield from _walk(top, "", MOST_LEVELS)


def _walk(folder: int, above: str, levels: int) -> Iterator[RunEntry]:
    for name in sorted(os.listdir(folder)):
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError:  # gone since
            continue
        yield RunEntry(above + name, folder, status)
        if stat.S_ISDIR(status.st_mode) and levels > 1:
            try:
                below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder)
            except OSError:  # gone since, or not for us to read
                continue
            try:
                yield from _walk(below, f"{above}{name}/", levels - 1)
            finally:
                os.close(below)


@contextlib.contextmanager
def open_own_folder(root: Path, *names: str) -> Iterator[Path]:
    """A path to a folder below `root` that, as the one above it, only this user can write to: nobody can exchange it.

    It leads through the descriptor of the one above, where the system has such paths, also for processes started here.
    """
    with open_folder(root, *names[:-1]) as above:
        for found in (os.fstat(above), os.stat(names[-1], dir_fd=above, follow_symlinks=False)):
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & OTHERS_WRITE:
                raise NotPlain(root.joinpath(*names), "it is not yours alone")
        path = Path(f"/proc/{os.getpid()}/fd/{above}", names[-1])
        yield path if path.exists() else root.joinpath(*names)


def open_alone(path: Path) -> int:
    """A descriptor of a file to append to, made where it is missing; nobody but its owner can write to it."""
    handle = open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    found = os.fstat(handle)
    if found.st_nlink > 1:
        os.close(handle)
        raise NotPlain(path, "it has another name elsewhere, and would be changed there")
    mode = stat.S_IMODE(found.st_mode) & ~OTHERS_WRITE | (stat.S_IRGRP if group_reads(path.parent) else 0)
    with contextlib.suppress(OSError):  # on a volume, perhaps, where it is another's
        os.fchmod(handle, mode)
    return handle


def write_alone(path: Path, content: bytes, mode: int | None = None) -> None:
    """Put a file in the place of what lies under this name, whole; nobody but its owner can write to it.

    In a folder that a group was given to read, it may read the file too. With a mode, only that is allowed, ever.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        handle = os.open(temporary, flags, 0o644 if mode is None else mode)
        with os.fdopen(handle, "wb") as file:
            if mode is not None:
                os.fchmod(handle, mode)
            elif group_reads(path.parent):
                os.fchmod(handle, stat.S_IMODE(os.fstat(handle).st_mode) | stat.S_IRGRP)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:  # a full disk is not to be filled with halves of it
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


# What looks like a secret, and text without it: environment variables and command lines end up in files.


REMOVED = "***"
# A name that holds one of these anywhere, or one of the short ones between underscores, is never recorded.
SECRET_WORDS = (
    "TOKEN", "KEY", "SECRET", "PASSW", "PASSPHRASE", "PWD", "AUTH", "CREDENTIAL", "CRED", "PRIVATE",
    "SIGNATURE", "COOKIE", "SESSION", "CERT", "BEARER", "LOGIN", "LICENSE", "WEBHOOK",
)  # fmt: skip
SECRET_PARTS = frozenset(("PASS", "PIN", "OTP", "JWT", "SALT", "SAS", "SSH", "GPG", "USER"))
# Options are less strict, or --tokenizer and --max-tokens of a training script would lose their values.
_OPTION = (
    r"passw|passphrase|secret|credential|api[-_]?key|bearer|cookie|signature|webhook|(?:token|key)(?:$|[-_.])"
    r"|(?:^|[-_.])(?:tokens|keys|pass|passcode|passin|passout|pw|pwd|auth|authorization|creds?|private|jwt|otp|pin|sas"
    r"|salt|login)(?:$|[-_.])"
)
_SECRET_OPTION = re.compile(_OPTION, re.IGNORECASE)
_NAMED_IN_TEXT = re.compile(  # name=secret, "name": "secret" or --name secret inside of a longer text
    r"""((?<![\w-])--?[\w-]{0,40}(?:passw|pass(?=\s)|pwd(?=\s)|secret|token|api-?key|credential)[\w-]{0,40}\s+(?!-)"""
    r"""|\b[\w-]{0,40}(?:token|secret|passw|_pass(?==)|api[-_]?key|access[-_]?key|auth|credential)[\w-]{0,40}["']?\s*[=:]\s*)"""
    r"""("(?:[^"\\]|\\.)*"|'[^']*'|[^\s,;&"'}]+)""",
    re.IGNORECASE,
)
_HEADER = re.compile(
    r"((?:\b|(?<=-H))(?:(?:proxy-)?authorization|cookie)\s*:\s*|\b(?:bearer|basic)\s+)[^\"']+", re.IGNORECASE
)
_USER_IN_TEXT = re.compile(r"((?<!\S)(?:-u\s*|--user[=\s])[^\s:=/]+):[^\s\"']+")  # curl -u name:password
# Programs that have a password as a short option; of mysql only glued to it.
_SHORT_OPTIONS = {"sshpass": "-p", "ipmitool": "-P", "redis-cli": "-a", "ldapsearch": "-w"}
_GLUED_OPTIONS = _SHORT_OPTIONS | {"mysql": "-p", "mysqldump": "-p", "mariadb": "-p"}
_GLUED_IN_TEXT = re.compile(r"(\b(?:mysql(?:dump)?|mariadb)\s(?:[^\s;|&]+\s){0,20}?-p)\S+")
_LONGEST = 10_000  # characters of a word that are kept
_KNOWN_FORM = re.compile(  # as Hugging Face, OpenAI, GitHub, GitLab, Slack and AWS make them; a JSON web token
    r"\b(?:hf_|sk-|gh[opsu]_|github_pat_|glpat-|xox[abp]-|AKIA)[A-Za-z0-9_-]{12,}|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"
)
_USER = ("-u", "--user", "--proxy-user")  # of curl and others: name:password


def looks_secret(name: str) -> bool:
    """Whether the name of a variable holds a word that secrets are named by; in doubt it does."""
    upper = name.upper()
    return any(word in upper for word in SECRET_WORDS) or not SECRET_PARTS.isdisjoint(upper.split("_"))


def redacted(value: str) -> str:
    """A value without user and password of a URL, and without the query of one (it may hold a token)."""
    value = re.sub(r"([A-Za-z][A-Za-z0-9+.-]*://)\S*@", rf"\1{REMOVED}@", value)
    value = re.sub(r"([A-Za-z][A-Za-z0-9+.-]*://[^\s?]*)\?\S*", rf"\1?{REMOVED}", value)
    value = _HEADER.sub(rf"\1{REMOVED}", value)
    value = _NAMED_IN_TEXT.sub(rf"\1{REMOVED}", value)
    value = _USER_IN_TEXT.sub(rf"\1:{REMOVED}", value)
    value = _GLUED_IN_TEXT.sub(rf"\1{REMOVED}", value)
    return _KNOWN_FORM.sub(REMOVED, value)


def redacted_command(words: Sequence[str]) -> list[str]:
    """A command line without the values of options and variables that look secret; as many words as before."""
    kept: list[str] = []
    before = ""  # the option whose value this word may be
    program = words[0].rpartition("/")[2] if words else ""
    short, glued = _SHORT_OPTIONS.get(program), _GLUED_OPTIONS.get(program)
    for whole in words:
        word = whole[:_LONGEST]
        name, sign, value = word.partition("=")
        if (short is not None and before == short) or (_is_value(word) and _is_secret_option(before, word)):
            kept.append(REMOVED)
        elif glued is not None and word.startswith(glued) and len(word) > len(glued):
            kept.append(f"{glued}{REMOVED}")
        elif before in _USER and ":" in word and _is_value(word):
            kept.append(f"{word.partition(':')[0]}:{REMOVED}")
        elif sign and value and (_is_secret_option(name, value) or _is_secret_variable(name)):
            kept.append(f"{name}={REMOVED}")
        else:
            kept.append(redacted(word))
        before = "" if sign else word
    return kept


def _is_value(word: str) -> bool:
    """Whether a word can be the value of the option before it: a password may begin with a hyphen."""
    return not word.startswith("--") and not re.fullmatch(r"-[A-Za-z]", word)


def _is_secret_option(option: str, value: str) -> bool:
    if not re.match(r"--?[A-Za-z]{2}", option):
        return False
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", option.lstrip("-"))  # --apiToken
    return bool(_SECRET_OPTION.search(name)) and not ("tokens" in name.lower() and is_digits(value))


def _is_secret_variable(name: str) -> bool:
    return bool(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)) and (
        bool(_SECRET_OPTION.search(name)) or (name.isupper() and looks_secret(name))
    )
