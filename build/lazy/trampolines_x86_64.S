/*
 * Trampolines of the lazy libcuda, System V x86-64. See resolve.c.
 *
 * A call arrives with its arguments in rdi rsi rdx rcx r8 r9, xmm0-7 and on the stack, and must
 * reach the driver with all of them as they were.
 */
    .text

    .macro TRAMPOLINE name, index
    .globl \name
    .hidden \name
    .type \name, @function
    .p2align 4
\name:
    .cfi_startproc
    endbr64
    movq    wp_lazy_slots+8*\index(%rip), %r11
    testq   %r11, %r11
    je      1f
    jmp     *%r11
1:  movl    $\index, %r11d
    jmp     wp_lazy_first_call
    .cfi_endproc
    .size \name, . - \name
    .endm

/* The index is in r11d. On entry rsp is 8 short of a multiple of 16, as after any call. */
    .type wp_lazy_first_call, @function
    .p2align 4
wp_lazy_first_call:
    .cfi_startproc
    pushq   %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    movq    %rsp, %rbp
    .cfi_def_cfa_register %rbp
    subq    $192, %rsp              /* 8 vectors, 8 words: rsp is now a multiple of 16 */
    movups  %xmm0, 0(%rsp)
    movups  %xmm1, 16(%rsp)
    movups  %xmm2, 32(%rsp)
    movups  %xmm3, 48(%rsp)
    movups  %xmm4, 64(%rsp)
    movups  %xmm5, 80(%rsp)
    movups  %xmm6, 96(%rsp)
    movups  %xmm7, 112(%rsp)
    movq    %rdi, 128(%rsp)
    movq    %rsi, 136(%rsp)
    movq    %rdx, 144(%rsp)
    movq    %rcx, 152(%rsp)
    movq    %r8, 160(%rsp)
    movq    %r9, 168(%rsp)
    movq    %rax, 176(%rsp)         /* al counts the vectors of a variadic call */
    movl    %r11d, %edi
    call    wp_lazy_resolve
    movq    %rax, %r11
    movups  0(%rsp), %xmm0
    movups  16(%rsp), %xmm1
    movups  32(%rsp), %xmm2
    movups  48(%rsp), %xmm3
    movups  64(%rsp), %xmm4
    movups  80(%rsp), %xmm5
    movups  96(%rsp), %xmm6
    movups  112(%rsp), %xmm7
    movq    128(%rsp), %rdi
    movq    136(%rsp), %rsi
    movq    144(%rsp), %rdx
    movq    152(%rsp), %rcx
    movq    160(%rsp), %r8
    movq    168(%rsp), %r9
    movq    176(%rsp), %rax
    leave
    .cfi_def_cfa %rsp, 8
    jmp     *%r11
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
    .type wp_lazy_cuda_functions, @object
    .size wp_lazy_cuda_functions, 4
    .p2align 2
wp_lazy_cuda_functions:
    .long wp_lazy_index

    .section .note.GNU-stack, "", @progbits
