/*
 * Runs in the job once for each rank: starts the user's command and records its output and end.
 *
 * The flavour's launcher starts it as `hvrank RUN RANK_VARIABLES LOCAL_RANK_VARIABLES`; the last
 * two are comma-separated names of variables that may hold this rank's number and its number on the
 * node. It reads RUN/ranks/order, writes RUN/logs/rank-NNNNN.log while the command runs, and
 * RUN/ranks/rank-NNNNN.json when the command starts and when it ends. Its exit status is the
 * command's, or 128 + signal.
 *
 * It consists of two processes: the one that the launcher started, and its child, the supervisor,
 * which is the command's parent. After an abort, Hydra sends SIGKILL to the process group that it
 * started. The supervisor is not in that group, so it still records the rank's last output and end.
 *
 * Supervisor and command have a process group each, in the launcher's session. Not a session each:
 * Linux schedules sessions apart (autogroup), and sched_yield, with which MPI waits where ranks
 * share cores, then yields to no other rank. Not one group for both: once the launcher has gone, the
 * group would be orphaned, and the kernel would end a suspended command by SIGHUP before it writes
 * its stacks.
 *
 * It is in C because a node's ranks start at once: Python would take 25 ms of a core for each.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "common/log.h"
#include "devices.h"
#include "order.h"
#include "rank_log.h"
#include "rank_state.h"

const char log_name[] = "hvscale";

enum { STATUS_PROBLEM = 1, STATUS_WRONG_REQUEST = 2, STATUS_CANNOT_START = 127, STATUS_SIGNAL = 128 };
enum { NO_TIMEOUT = -1 };
static const double CHECK_SECONDS = 1.0;
/* After the command's end: time to wait for output of processes that it has started, such as a tee. */
static const double DRAIN_SECONDS = 0.5;
/* From then on a process that never stops writing is not waited for, once this much has been copied. */
enum { LATE_BYTES = 1 << 20 };
/* Time for a command to end after its launcher has gone, so that an aborting command keeps its status. */
static const double ABORT_SECONDS = 0.3;

static const int forwarded[] = {SIGTERM, SIGINT, SIGUSR1, SIGUSR2};
enum { FORWARDED = sizeof forwarded / sizeof *forwarded };

static volatile sig_atomic_t child;
/*
 * What gets the forwarded signals: a process, or minus a process group. They are blocked until it is
 * set.
 */
static volatile sig_atomic_t receiver;

static void forward(int number)
{
    int saved = errno;
    kill((pid_t)receiver, number);
    errno = saved;
}

static void wake(int number)
{
    (void)number; /* ends ppoll */
}

/*
 * Blocks the forwarded signals and SIGCHLD; ppoll with `before`, the mask until now, lets them in.
 * This leaves no moment in which a signal has no one to go to, or comes just before a wait.
 */
static void take_signals(sigset_t *before)
{
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGCHLD);
    for (int i = 0; i < FORWARDED; i++)
        sigaddset(&blocked, forwarded[i]);
    sigprocmask(SIG_BLOCK, &blocked, before);
}

static void handle(int number, void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler};
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, NULL);
}

static void forward_signals(void)
{
    for (int i = 0; i < FORWARDED; i++)
        handle(forwarded[i], forward);
    handle(SIGCHLD, wake);
}

/* Waits for the files or a signal. `before`: the mask of signals while it waits. */
static void wait_for(struct pollfd *files, nfds_t count, double seconds, const sigset_t *before)
{
    struct timespec limit = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    if (ppoll(files, count, seconds < 0 ? NULL : &limit, before) < 0)
        for (nfds_t i = 0; i < count; i++)
            files[i].revents = 0;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* The value of the first of these variables that is set; -1 after one line if none is. */
static int number_from(const char *names)
{
    char list[1024], *rest = NULL;
    snprintf(list, sizeof list, "%s", names);
    for (char *name = strtok_r(list, ",", &rest); name != NULL; name = strtok_r(NULL, ",", &rest)) {
        const char *value = getenv(name);
        if (value != NULL)
            return atoi(value);
    }
    log_line("no rank number in the environment (looked for %s)", names);
    return -1;
}

/* A line in the rank's log. */
static void log_problem(const char *problem)
{
    char line[1024];
    int length = snprintf(line, sizeof line, "hvscale: %s\n", problem);
    rank_log_write(line, length < (int)sizeof line ? (size_t)length : sizeof line - 1);
}

/* Replaces this process by the program, looked for in PATH; returns with errno. */
static void execute(char *const *arguments)
{
    const char *name = arguments[0], *path = getenv("PATH");
    if (strchr(name, '/') != NULL) {
        execv(name, arguments);
        return;
    }
    /* execvp would run a file that is no program, such as an empty one, in a shell. */
    int found = ENOENT;
    for (const char *folder = path != NULL ? path : "/usr/bin:/bin"; folder != NULL;) {
        const char *end = strchrnul(folder, ':');
        char file[PATH_MAX];
        int length = (int)(end - folder);
        if (snprintf(file, sizeof file, "%.*s/%s", length > 0 ? length : 1, length > 0 ? folder : ".", name) <
            (int)sizeof file) {
            execv(file, arguments);
            if (errno != ENOENT && errno != ENOTDIR)
                found = errno;
        }
        folder = *end == ':' ? end + 1 : NULL;
    }
    errno = found;
}

static void run_command(const struct order *order, int terminal, pid_t supervisor, const sigset_t *before)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != supervisor) /* it was killed just now */
        _exit(STATUS_SIGNAL + SIGKILL);
    setpgid(0, 0);
    /* The first two are forwarded, the others ignored, and an ignored signal stays ignored. */
    for (int i = 0; i < FORWARDED; i++)
        handle(forwarded[i], SIG_DFL);
    handle(SIGCHLD, SIG_DFL);
    handle(SIGPIPE, SIG_DFL);
    handle(SIGXFSZ, SIG_DFL);
    sigprocmask(SIG_SETMASK, before, NULL);
    /* Open MPI 5 gives rank 0 a pipe that it never closes: a command that reads it would hang. */
    close(STDIN_FILENO);
    open("/dev/null", O_RDONLY); /* takes the place of stdin */
    dup2(terminal, STDOUT_FILENO);
    dup2(terminal, STDERR_FILENO);
    execute(order->arguments);
    log_line("cannot start %s: %s", order->arguments[0], strerror(errno));
    _exit(STATUS_CANNOT_START);
}

/* A pseudo-terminal that passes bytes on as they are. Returns false with errno. */
static bool open_terminal(int *master, int *slave)
{
    char name[128];
    *master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (*master < 0 || grantpt(*master) != 0 || unlockpt(*master) != 0 ||
        ptsname_r(*master, name, sizeof name) != 0)
        return false;
    *slave = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
    struct termios modes;
    if (*slave < 0 || tcgetattr(*slave, &modes) != 0)
        return false;
    cfmakeraw(&modes);
    return tcsetattr(*slave, TCSANOW, &modes) == 0;
}

/*
 * Starts the command with stdout and stderr on a pseudo-terminal: C programs then flush line by
 * line, as under mpirun. Returns false after a line in the log.
 */
static bool start_command(const struct order *order, int *master, const sigset_t *before)
{
    int slave;
    if (!open_terminal(master, &slave)) {
        char problem[256];
        int error = errno;
        const char *fix = error == ENOSPC   ? "raise the sysctl kernel.pty.max"
                          : error == EMFILE ? "raise ulimit -n"
                                            : "mount devpts on /dev/pts";
        snprintf(problem, sizeof problem, "no pseudo-terminal for the rank's output (%s): %s", strerror(error), fix);
        log_problem(problem);
        return false;
    }
    pid_t supervisor = getpid(), pid = fork();
    if (pid == 0)
        run_command(order, slave, supervisor, before);
    close(slave);
    if (pid < 0) {
        log_problem("no process could be started for the rank: raise ulimit -u");
        return false;
    }
    setpgid(pid, pid); /* also here: a signal may come before the child has done so */
    child = pid;
    receiver = -pid; /* also what the command starts, as under mpirun */
    return true;
}

/*
 * Copies what is there, and returns its bytes. Returns -1 at the end: Linux reports EIO once no
 * process has it open.
 */
static ssize_t copy_output(int master, double *last_output_at)
{
    static char data[65536];
    ssize_t got = read(master, data, sizeof data);
    if (got < 0 && (errno == EINTR || errno == EAGAIN))
        return 0;
    if (got <= 0)
        return -1;
    rank_log_write(data, (size_t)got);
    *last_output_at = seconds_since_1970();
    return got;
}

/* Whether the command has ended. It stays a zombie, so that its group's number is not used again. */
static bool command_has_ended(void)
{
    siginfo_t found = {0};
    return waitid(P_PID, (id_t)child, &found, WEXITED | WNOHANG | WNOWAIT) == 0 && found.si_pid != 0;
}

/*
 * Copies the command's output into the log until the command ends, and returns its wait status.
 * `launched` is a pipe that closes when the launched process ends; the command is then killed, with
 * the processes that it has started.
 */
static int copy_until_end(int master, int launched, struct rank_state *state, const sigset_t *before)
{
    enum { OUTPUT, LAUNCHER };
    struct pollfd files[] = {{.fd = master, .events = POLLIN}, {.fd = launched, .events = POLLIN}};
    const pid_t command = (pid_t)child;
    bool ended = false;
    /* `waited`: since the end, without the time that writes to the log take. */
    double kill_at = 0, drain_until = 0, waited = 0;
    ssize_t late_bytes = 0;
    /* A process that the command has left may keep the terminal open: do not wait for its end. */
    while (!ended || (files[OUTPUT].fd >= 0 && waited < DRAIN_SECONDS &&
                      (late_bytes < LATE_BYTES || now() < drain_until))) {
        double began = now();
        wait_for(files, 2, ended ? DRAIN_SECONDS - waited : kill_at > 0 ? ABORT_SECONDS : NO_TIMEOUT, before);
        if (ended)
            waited += now() - began;
        if (files[LAUNCHER].revents != 0) {
            files[LAUNCHER].fd = -1;
            state->killed_by_launcher = true;
            kill_at = now() + ABORT_SECONDS;
            if (!ended)
                kill(-command, SIGCONT); /* a stopped command may have output left */
        }
        ssize_t copied = files[OUTPUT].revents != 0 ? copy_output(master, &state->last_output_at) : 0;
        if (copied < 0)
            files[OUTPUT].fd = -1;
        else if (ended)
            late_bytes += copied;
        if (!ended && command_has_ended()) {
            ended = true;
            drain_until = now() + DRAIN_SECONDS;
            receiver = command; /* no signal to what the command has left, such as a tee */
        } else if (!ended && kill_at > 0 && now() > kill_at) {
            kill(-command, SIGKILL);
        }
    }
    if (state->killed_by_launcher)
        kill(-command, SIGKILL);
    int status = 0;
    waitpid(command, &status, 0);
    return status;
}

/* Records the end of a rank whose command's end was not seen. */
static int record_end(struct rank_state state, pid_t pid, int exit_status, int signal_number)
{
    state.pid = pid;
    state.exit_status = exit_status;
    state.signal = signal_number;
    state.ended_at = seconds_since_1970();
    rank_state_write(&state);
    return signal_number != 0 ? STATUS_SIGNAL + signal_number : exit_status;
}

/* In the environment of this process, which the command inherits. */
static void set_variables(const struct order *order, int rank)
{
    for (char **variable = order->variables; *variable != NULL; variable++)
        if (strchr(*variable, '=') != NULL)
            putenv(*variable);
    const char *folder = getenv("HVSCALE_INIT_MARKER");
    char stem[PATH_MAX];
    if (folder != NULL && snprintf(stem, sizeof stem, "%s/rank-%05d", folder, rank) < (int)sizeof stem)
        setenv("HVSCALE_INIT_MARKER", stem, 1);
}

/*
 * Runs the command and writes its log, its start and its end. Returns the command's exit status, or
 * 128 + signal.
 */
static int supervise(struct rank_state *state, const char *local_rank_variables, int launched, const sigset_t *before)
{
    char path[PATH_MAX], problem[512];
    struct order order = {0};
    rank_log_open(state->run, state->rank);
    if (snprintf(path, sizeof path, "%s/ranks/order", state->run) >= (int)sizeof path || !order_read(path, &order))
        return record_end(*state, getpid(), STATUS_PROBLEM, 0);
    set_variables(&order, state->rank);
    bool selects = strcmp(order.devices, "all") != 0;
    int local_rank = selects ? number_from(local_rank_variables) : 0, offered = devices_offered();
    if (local_rank < 0)
        return record_end(*state, getpid(), STATUS_PROBLEM, 0);
    if (!devices_select(order.devices, order.library_variable, offered, local_rank, problem)) {
        log_problem(problem);
        return record_end(*state, getpid(), STATUS_WRONG_REQUEST, 0);
    }
    state->has_devices = true;
    state->library_variable = order.library_variable;
    state->devices_offered = offered;

    int master;
    if (!start_command(&order, &master, before))
        return record_end(*state, getpid(), STATUS_PROBLEM, 0);
    state->pid = (pid_t)child;
    state->started_at = seconds_since_1970();
    rank_state_write(state);
    int status = copy_until_end(master, launched, state, before);
    if (WIFSIGNALED(status))
        return record_end(*state, state->pid, 0, WTERMSIG(status));
    return record_end(*state, state->pid, WEXITSTATUS(status), 0);
}

/*
 * Returns the supervisor's exit status. If the launcher ends first, this process ends too, and the
 * supervisor kills the command. If the supervisor was killed, this process records that: Hydra does
 * not end a job when a rank's status is not 0.
 */
static int wait_for_supervisor(const struct rank_state *state, pid_t launcher, const sigset_t *before)
{
    int status;
    while (waitpid((pid_t)child, &status, WNOHANG) == 0) {
        if (getppid() != launcher)
            return STATUS_SIGNAL + SIGHUP;
        wait_for(NULL, 0, CHECK_SECONDS, before);
    }
    return WIFSIGNALED(status) ? record_end(*state, (pid_t)child, 0, WTERMSIG(status)) : WEXITSTATUS(status);
}

/* Opens /dev/null in place of closed standard files: other files would get their numbers. */
static void open_standard_files(void)
{
    int file;
    do
        file = open("/dev/null", O_RDWR);
    while (file >= 0 && file <= STDERR_FILENO);
    close(file);
}

int main(int argc, char **argv)
{
    enum { RUN = 1, RANK, LOCAL_RANK, ARGUMENTS };
    open_standard_files();
    if (argc != ARGUMENTS) {
        log_line("%s is started by hvscale launch", argv[0]);
        return STATUS_WRONG_REQUEST;
    }
    struct rank_state state = {.run = argv[RUN], .rank = number_from(argv[RANK])};
    int launched[2];
    if (state.rank < 0)
        return STATUS_PROBLEM;
    if (pipe2(launched, O_CLOEXEC) != 0) {
        log_line("no pipe: %s", strerror(errno));
        return STATUS_PROBLEM;
    }
    pid_t launcher = getppid();
    sigset_t before;
    take_signals(&before);
    forward_signals();
    child = fork();
    if (child == 0) {
        close(launched[1]); /* the other writer closes with the launched process */
        setpgid(0, 0);
        handle(SIGPIPE, SIG_IGN); /* a full disk or a limit on file sizes must not end the job */
        handle(SIGXFSZ, SIG_IGN);
        _exit(supervise(&state, argv[LOCAL_RANK], launched[0], &before));
    }
    if (child < 0) {
        log_line("no process could be started for the rank: %s", strerror(errno));
        return STATUS_PROBLEM;
    }
    receiver = child;
    close(launched[0]);
    return wait_for_supervisor(&state, launcher, &before);
}
