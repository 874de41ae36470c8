/*
 * The lazy libcuda: every driver function that rustacuda declares, none of them linked.
 *
 * Each function is a trampoline (trampolines_ARCH.S) that jumps through its slot. A slot starts
 * empty; the first call comes here, opens libcuda.so.1, finds the function and fills the slot, so
 * later calls cost one load and one indirect jump. With no driver on the machine the slot gets a
 * function that answers CUDA_ERROR_NO_DEVICE, so a program starts everywhere and rustacuda::init()
 * returns an error there. A driver that lacks one function (older than it, or retired since)
 * answers CUDA_ERROR_NOT_FOUND to that one alone.
 *
 * All names are hidden: nothing outside the program sees them, the real driver, once open, least
 * of all. Any thread may call anything first: dlopen and dlsym are thread-safe, and every thread
 * that races to fill a slot writes the same value.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#define HIDDEN __attribute__((visibility("hidden")))

enum { CUDA_ERROR_INVALID_VALUE = 1, CUDA_ERROR_NO_DEVICE = 100, CUDA_ERROR_NOT_FOUND = 500 };

static const char *const names[] = {
#define SYMBOL(name) #name,
#include "symbols.inc"
#undef SYMBOL
};

#define COUNT (sizeof names / sizeof *names)

/* Read by the trampolines; zero until resolved. */
HIDDEN void *wp_lazy_slots[COUNT];

static int no_device(void) { return CUDA_ERROR_NO_DEVICE; }

static int not_found(void) { return CUDA_ERROR_NOT_FOUND; }

/*
 * Without a driver the one code that is ever returned must still have words: rustacuda asks for
 * them when its error is printed, and formatting would fail otherwise.
 */
static int text_of(int code, const char **text, const char *words)
{
    if (code != CUDA_ERROR_NO_DEVICE || text == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *text = words;
    return 0;
}

static int error_name(int code, const char **text)
{
    return text_of(code, text, "CUDA_ERROR_NO_DEVICE");
}

static int error_string(int code, const char **text)
{
    return text_of(code, text, "no CUDA driver on this machine (libcuda.so.1 cannot be opened)");
}

static void *without_driver(const char *name)
{
    if (strcmp(name, "cuGetErrorName") == 0)
        return (void *)error_name;
    if (strcmp(name, "cuGetErrorString") == 0)
        return (void *)error_string;
    return (void *)no_device;
}

/*
 * Called by the trampolines with every argument register saved. What it finds holds for good: a
 * function that was first called without a driver goes on answering so.
 */
HIDDEN void *wp_lazy_resolve(unsigned index)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *found = NULL;
    if (library != NULL)
        found = dlsym(library, names[index]);
    if (found == NULL)
        found = library != NULL ? (void *)not_found : without_driver(names[index]);
    __atomic_store_n(&wp_lazy_slots[index], found, __ATOMIC_RELEASE);
    return found;
}
