/* Writes the rank's record as JSON. */
#include "rank_state.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "devices.h"

double seconds_since_1970(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void write_string(FILE *stream, const char *text)
{
    fputc('"', stream);
    for (const unsigned char *next = (const unsigned char *)text; *next != '\0'; next++) {
        if (*next == '"' || *next == '\\')
            fprintf(stream, "\\%c", *next);
        else if (*next < ' ')
            fprintf(stream, "\\u%04x", *next);
        else
            fputc(*next < 128 ? *next : '?', stream); /* may not be UTF-8, which JSON requires */
    }
    fputc('"', stream);
}

static void write_variable(FILE *stream, const char *name)
{
    write_string(stream, name);
    fputs(": ", stream);
    const char *value = getenv(name);
    if (value != NULL)
        write_string(stream, value);
    else
        fputs("null", stream);
}

/* glibc has sigabbrev_np only since 2.32. NULL: a real-time signal. */
static const char *signal_name(int number)
{
    static const struct {
        int number;
        const char *name;
    } known[] = {
#define KNOWN(name) {name, #name}
        KNOWN(SIGHUP),  KNOWN(SIGINT),    KNOWN(SIGQUIT), KNOWN(SIGILL),  KNOWN(SIGTRAP),   KNOWN(SIGABRT),
        KNOWN(SIGBUS),  KNOWN(SIGFPE),    KNOWN(SIGKILL), KNOWN(SIGUSR1), KNOWN(SIGSEGV),   KNOWN(SIGUSR2),
        KNOWN(SIGPIPE), KNOWN(SIGALRM),   KNOWN(SIGTERM), KNOWN(SIGXCPU), KNOWN(SIGXFSZ),   KNOWN(SIGVTALRM),
        KNOWN(SIGPROF), KNOWN(SIGSTKFLT), KNOWN(SIGPOLL), KNOWN(SIGPWR),  KNOWN(SIGSYS),
#undef KNOWN
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].number == number)
            return known[i].name;
    return NULL;
}

static void write_end(FILE *stream, const struct rank_state *state)
{
    const char *name = signal_name(state->signal);
    if (state->signal == 0)
        fprintf(stream, ", \"exit_status\": %d", state->exit_status);
    else if (name != NULL)
        fprintf(stream, ", \"signal\": \"%s\"", name);
    else
        fprintf(stream, ", \"signal\": \"signal %d\"", state->signal);
    fprintf(stream, ", \"ended_at\": %.6f", state->ended_at);
}

static void write_document(FILE *stream, const struct rank_state *state)
{
    struct utsname host;
    uname(&host);
    fprintf(stream, "{\"rank\": %d, \"host\": ", state->rank);
    write_string(stream, host.nodename);
    fprintf(stream, ", \"pid\": %d", (int)state->pid);
    if (state->has_devices) {
        fputs(", \"devices\": {\"variables\": {", stream);
        write_variable(stream, VISIBLE_DEVICES);
        if (state->library_variable != NULL) {
            fputs(", ", stream);
            write_variable(stream, state->library_variable);
        }
        fprintf(stream, "}, \"offered\": %d}", state->devices_offered);
    }
    if (state->started_at > 0)
        fprintf(stream, ", \"started_at\": %.6f", state->started_at);
    if (state->killed_by_launcher)
        fprintf(stream, ", \"killed_by_launcher\": true, \"last_output_at\": %.6f", state->last_output_at);
    if (state->ended_at > 0)
        write_end(stream, state);
    fputs("}", stream);
}

void rank_state_write(const struct rank_state *state)
{
    char path[PATH_MAX], temporary[PATH_MAX];
    snprintf(path, sizeof path, "%s/ranks/rank-%05d.json", state->run, state->rank);
    if (snprintf(temporary, sizeof temporary, "%s.%d", path, (int)getpid()) >= (int)sizeof temporary)
        return;
    int file = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    FILE *stream = file >= 0 ? fdopen(file, "w") : NULL;
    if (stream == NULL) {
        if (file >= 0)
            close(file);
        return;
    }
    write_document(stream, state);
    bool failed = ferror(stream) != 0;
    if (fclose(stream) != 0 || failed || rename(temporary, path) != 0)
        unlink(temporary);
}
