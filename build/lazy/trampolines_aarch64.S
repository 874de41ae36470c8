/*
 * Trampolines of the lazy libcuda, AArch64 (AAPCS64). See resolve.c.
 *
 * A call arrives with its arguments in x0-x7, q0-q7 and on the stack (x8 holds the address of a
 * large result), and must reach the driver with all of them as they were. x16 and x17 are free
 * between a call and its target.
 */
    .text

    .macro TRAMPOLINE name, index
    .globl \name
    .hidden \name
    .type \name, %function
    .p2align 4
\name:
    .cfi_startproc
    hint    #34                     /* bti c */
    adrp    x16, wp_lazy_slots
    add     x16, x16, :lo12:wp_lazy_slots
    add     x16, x16, #(8 * \index)
    ldar    x16, [x16]              /* pairs with the resolver's release */
    cbz     x16, 1f
    br      x16
1:  mov     w16, #\index
    b       wp_lazy_first_call
    .cfi_endproc
    .size \name, . - \name
    .endm

/* The index is in w16. */
    .type wp_lazy_first_call, %function
    .p2align 4
wp_lazy_first_call:
    .cfi_startproc
    stp     x29, x30, [sp, #-224]!
    .cfi_def_cfa_offset 224
    .cfi_offset x29, -224
    .cfi_offset x30, -216
    mov     x29, sp
    stp     x0, x1, [sp, #16]
    stp     x2, x3, [sp, #32]
    stp     x4, x5, [sp, #48]
    stp     x6, x7, [sp, #64]
    str     x8, [sp, #80]
    stp     q0, q1, [sp, #96]
    stp     q2, q3, [sp, #128]
    stp     q4, q5, [sp, #160]
    stp     q6, q7, [sp, #192]
    mov     w0, w16
    bl      wp_lazy_resolve
    mov     x16, x0
    ldp     x0, x1, [sp, #16]
    ldp     x2, x3, [sp, #32]
    ldp     x4, x5, [sp, #48]
    ldp     x6, x7, [sp, #64]
    ldr     x8, [sp, #80]
    ldp     q0, q1, [sp, #96]
    ldp     q2, q3, [sp, #128]
    ldp     q4, q5, [sp, #160]
    ldp     q6, q7, [sp, #192]
    ldp     x29, x30, [sp], #224
    .cfi_def_cfa_offset 0
    .cfi_restore x29
    .cfi_restore x30
    br      x16
    .cfi_endproc
    .size wp_lazy_first_call, . - wp_lazy_first_call

    .set    wp_lazy_index, 0
    .macro SYMBOL_AT_NEXT name
    .altmacro
    TRAMPOLINE \name, %wp_lazy_index
    .noaltmacro
    .set    wp_lazy_index, wp_lazy_index + 1
    .endm

#define SYMBOL(name) SYMBOL_AT_NEXT name
#include "symbols.inc"

/* What warpool refers to, so that this object is always linked: the number of trampolines. */
    .section .rodata
    .globl wp_lazy_cuda_functions
    .hidden wp_lazy_cuda_functions
    .type wp_lazy_cuda_functions, %object
    .size wp_lazy_cuda_functions, 4
    .p2align 2
wp_lazy_cuda_functions:
    .word wp_lazy_index

    .section .note.GNU-stack, "", %progbits
