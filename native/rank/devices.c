/* Selects a rank's GPUs. */
#include "devices.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char prefix[] = "nvidia"; /* /dev/nvidia0, but also /dev/nvidiactl */

static bool is_device(const char *name)
{
    if (strncmp(name, prefix, strlen(prefix)) != 0 || name[strlen(prefix)] == '\0')
        return false;
    for (const char *digit = name + strlen(prefix); *digit != '\0'; digit++)
        if (!isdigit((unsigned char)*digit))
            return false;
    return true;
}

int devices_offered(void)
{
    DIR *folder = opendir("/dev");
    int count = 0;
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;)
        count += is_device(entry->d_name);
    if (folder != NULL)
        closedir(folder);
    return count;
}

/* "0,1,2": all that the driver offers. */
static void list_offered(char *list, size_t size, int offered)
{
    size_t used = 0;
    list[0] = '\0';
    for (int device = 0; device < offered && used < size; device++)
        used += (size_t)snprintf(list + used, size - used, device > 0 ? ",%d" : "%d", device);
}

bool devices_select(const char *policy, const char *library_variable, int offered, int local_rank, char problem[512])
{
    if (strcmp(policy, "all") == 0)
        return true;
    char all[4096], own[512];
    const char *visible = getenv(VISIBLE_DEVICES);
    if (visible != NULL && *visible != '\0')
        snprintf(all, sizeof all, "%s", visible);
    else
        list_offered(all, sizeof all, offered);
    snprintf(own, sizeof own, "%d", local_rank);
    if (all[0] != '\0') {
        const char *device = all;
        for (int before = 0; before < local_rank && device != NULL; before++)
            if ((device = strchr(device, ',')) != NULL)
                device++;
        if (device == NULL) {
            snprintf(problem, 512,
                     "--devices %s: local rank %d has no GPU: its node offers %.256s; start fewer ranks on it, or use "
                     "--devices all",
                     policy, local_rank, all);
            return false;
        }
        snprintf(own, sizeof own, "%.*s", (int)strcspn(device, ","), device);
    }
    setenv(VISIBLE_DEVICES, own, 1);
    if (library_variable != NULL)
        setenv(library_variable, all, 1);
    return true;
}
