/* Reads the controller's order. */
#include "order.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/log.h"

#define FORMAT "hvscale-rank/1"

/* The content of a regular file, or NULL. */
static char *read_all(const char *path, size_t *bytes)
{
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat found;
    if (file < 0 || fstat(file, &found) != 0 || !S_ISREG(found.st_mode)) {
        log_line("%s: %s", path, file < 0 ? strerror(errno) : "not a file");
        return NULL;
    }
    char *content = malloc((size_t)found.st_size + 1);
    *bytes = 0;
    while (content != NULL && *bytes < (size_t)found.st_size) {
        ssize_t got = read(file, content + *bytes, (size_t)found.st_size - *bytes);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        *bytes += (size_t)got;
    }
    close(file);
    return content;
}

/* The next string before `end`, or NULL. */
static char *take(char **position, const char *end)
{
    char *text = *position, *stop = memchr(text, '\0', (size_t)(end - text));
    if (stop == NULL)
        return NULL;
    *position = stop + 1;
    return text;
}

static char **take_list(char **position, const char *end)
{
    const char *text = take(position, end);
    size_t count = text != NULL ? strtoul(text, NULL, 10) : 0;
    /* Each string has at least its NUL, so a damaged count cannot ask for more memory than this. */
    if (text == NULL || count > (size_t)(end - *position))
        return NULL;
    char **list = calloc(count + 1, sizeof *list);
    for (size_t i = 0; list != NULL && i < count; i++)
        if ((list[i] = take(position, end)) == NULL)
            return NULL;
    return list;
}

bool order_read(const char *path, struct order *order)
{
    size_t bytes;
    char *position = read_all(path, &bytes);
    if (position == NULL)
        return false;
    const char *end = position + bytes, *format = take(&position, end);
    if (format != NULL && strcmp(format, FORMAT) == 0 && (order->devices = take(&position, end)) != NULL &&
        (order->library_variable = take(&position, end)) != NULL &&
        (order->variables = take_list(&position, end)) != NULL &&
        (order->arguments = take_list(&position, end)) != NULL && order->arguments[0] != NULL && position == end) {
        if (*order->library_variable == '\0')
            order->library_variable = NULL;
        return true;
    }
    log_line("%s is damaged or of another version of hvscale", path);
    return false;
}
