//go:build amd64 && !race && !purego

#include "textflag.h"

// Both kernels run in two stages: stage A hashes key i+24 and prefetches its home
// bucket, stage B compares the bucket of key i and prefetches the unit of the
// candidate. 24 keeps more misses in flight than a core has line fill buffers.
//
// R8 keys, R9 out, R10 n, R11 table, R12 buckets, R13 chunks, DI i+distance,
// SI i, R15 multiplier, R14 (g, which the caller restores) open keys.

#define STAGE_A \
	MOVQ (R8)(DI*8), AX; \
	MOVQ AX, DX; \
	SHRQ $32, DX; \
	XORQ DX, AX; \
	IMULQ R15, AX; \
	MULQ R12; \
	SHRQ $32, AX; \
	ANDL tagMask+40(FP), AX; \
	MOVQ DI, CX; \
	SHLQ $4, CX; \
	MOVL DX, 0(R9)(CX*1); \
	MOVL AX, 4(R9)(CX*1); \
	SHLQ $6, DX; \
	PREFETCHT0 (R11)(DX*1); \
	INCQ DI

// In: AX lanes with the tag, CX lanes that are zero (bit 15: nothing went past),
// BX byte offset of the bucket, DI free. Out: found and id of out[SI].
#define STAGE_B_TAIL(none) \
	MOVL CX, DX; \
	NOTL DX; \
	ANDL DX, AX; \
	ANDL $0x7fff, AX; \
	SHLL $16, CX; \
	ORL AX, CX; \
	MOVQ SI, DX; \
	SHLQ $4, DX; \
	MOVL CX, 8(R9)(DX*1); \
	MOVL $0, 12(R9)(DX*1); \
	TESTL AX, AX; \
	JZ none; \
	BSFL AX, AX; \
	ADDQ R11, BX; \
	MOVL tagMask+40(FP), CX; \
	NOTL CX; \
	ANDL (BX)(AX*4), CX; \
	MOVL CX, 12(R9)(DX*1); \
	MOVL CX, DX; \
	SHRL $8, CX; \
	MOVQ (R13)(CX*8), BX; \
	SHRL $2, DX; \
	ANDL $63, DX; \
	LEAQ (DX)(DX*4), DX; \
	PREFETCHT0 (BX)(DX*8); \
	PREFETCHT0 32(BX)(DX*8)

// func probeAVX512(keys *uint64, out *probe, n int, table *uint32, buckets uint64, tagMask uint32, chunks **chunk) (open int)
TEXT ·probeAVX512(SB), NOSPLIT, $0-64
	MOVQ keys+0(FP), R8
	MOVQ out+8(FP), R9
	MOVQ n+16(FP), R10
	MOVQ table+24(FP), R11
	MOVQ buckets+32(FP), R12
	MOVQ chunks+48(FP), R13
	MOVQ $0x9e3779b97f4a7c15, R15
	MOVL tagMask+40(FP), AX
	VMOVD AX, X2
	VPBROADCASTD X2, Z2
	XORQ DI, DI
	XORQ SI, SI
	XORQ R14, R14

lead:
	CMPQ DI, R10
	JGE  body
	CMPQ DI, $24
	JGE  body
	STAGE_A
	JMP  lead

body:
	CMPQ SI, R10
	JGE  out
	CMPQ DI, R10
	JGE  compare
	STAGE_A

compare:
	MOVQ SI, DX
	SHLQ $4, DX
	MOVL 0(R9)(DX*1), BX
	SHLQ $6, BX
	VMOVDQU32 (R11)(BX*1), Z0
	VPXORD.BCST 4(R9)(DX*1), Z0, Z1
	VPTESTNMD Z2, Z1, K1
	VPTESTNMD Z0, Z0, K2
	KMOVW K1, AX
	KMOVW K2, CX
	STAGE_B_TAIL(none)

	INCQ R14

next:
	INCQ SI
	JMP  body

none:
	// A hash that is not in its home bucket may be in the next one, or go there if
	// this one is full. CX is found, DX the byte offset in out, BX that of the bucket.
	TESTL CX, CX
	JNS   past
	TESTL $0x7fff0000, CX
	JNZ   next
	PREFETCHT0 64(R11)(BX*1)
	JMP   next

past:
	// Something went past: only a tag in the filter can have.
	MOVL 4(R9)(DX*1), AX
	SHRL $16, AX
	LEAL (AX)(AX*2), AX
	SHRL $13, AX
	ADDL $8, AX
	BTL  AX, 60(R11)(BX*1)
	JCS  second
	ORL  $0x80000000, CX
	MOVL CX, 8(R9)(DX*1)
	TESTL $0x7fff0000, CX
	JNZ  next
	PREFETCHT0 64(R11)(BX*1)
	JMP  next

second:
	PREFETCHT0 64(R11)(BX*1)
	INCQ R14
	JMP  next

out:
	VZEROUPPER
	MOVQ R14, open+56(FP)
	RET

// func probeAVX2(keys *uint64, out *probe, n int, table *uint32, buckets uint64, tagMask uint32, chunks **chunk) (open int)
TEXT ·probeAVX2(SB), NOSPLIT, $0-64
	MOVQ keys+0(FP), R8
	MOVQ out+8(FP), R9
	MOVQ n+16(FP), R10
	MOVQ table+24(FP), R11
	MOVQ buckets+32(FP), R12
	MOVQ chunks+48(FP), R13
	MOVQ $0x9e3779b97f4a7c15, R15
	MOVL tagMask+40(FP), AX
	VMOVD AX, X2
	VPBROADCASTD X2, Y2
	VPXOR Y3, Y3, Y3
	XORQ DI, DI
	XORQ SI, SI
	XORQ R14, R14

lead:
	CMPQ DI, R10
	JGE  body
	CMPQ DI, $24
	JGE  body
	STAGE_A
	JMP  lead

body:
	CMPQ SI, R10
	JGE  out
	CMPQ DI, R10
	JGE  compare
	STAGE_A

compare:
	MOVQ SI, DX
	SHLQ $4, DX
	MOVL 0(R9)(DX*1), BX
	SHLQ $6, BX
	VMOVDQU (R11)(BX*1), Y0
	VMOVDQU 32(R11)(BX*1), Y1
	VPBROADCASTD 4(R9)(DX*1), Y4
	VPXOR Y4, Y0, Y5
	VPXOR Y4, Y1, Y6
	VPAND Y2, Y5, Y5
	VPAND Y2, Y6, Y6
	VPCMPEQD Y3, Y5, Y5
	VPCMPEQD Y3, Y6, Y6
	VPCMPEQD Y3, Y0, Y0
	VPCMPEQD Y3, Y1, Y1
	VMOVMSKPS Y5, AX
	VMOVMSKPS Y6, DX
	SHLL $8, DX
	ORL  DX, AX
	VMOVMSKPS Y0, CX
	VMOVMSKPS Y1, DX
	SHLL $8, DX
	ORL  DX, CX
	STAGE_B_TAIL(none)

	INCQ R14

next:
	INCQ SI
	JMP  body

none:
	// A hash that is not in its home bucket may be in the next one, or go there if
	// this one is full. CX is found, DX the byte offset in out, BX that of the bucket.
	TESTL CX, CX
	JNS   past
	TESTL $0x7fff0000, CX
	JNZ   next
	PREFETCHT0 64(R11)(BX*1)
	JMP   next

past:
	// Something went past: only a tag in the filter can have.
	MOVL 4(R9)(DX*1), AX
	SHRL $16, AX
	LEAL (AX)(AX*2), AX
	SHRL $13, AX
	ADDL $8, AX
	BTL  AX, 60(R11)(BX*1)
	JCS  second
	ORL  $0x80000000, CX
	MOVL CX, 8(R9)(DX*1)
	TESTL $0x7fff0000, CX
	JNZ  next
	PREFETCHT0 64(R11)(BX*1)
	JMP  next

second:
	PREFETCHT0 64(R11)(BX*1)
	INCQ R14
	JMP  next

out:
	VZEROUPPER
	MOVQ R14, open+56(FP)
	RET

// func scanAVX512(bucket *[bucketWords]uint32, tag, tagMask uint32) uint32
TEXT ·scanAVX512(SB), NOSPLIT, $0-20
	MOVQ bucket+0(FP), BX
	MOVL tagMask+12(FP), AX
	VMOVD AX, X2
	VPBROADCASTD X2, Z2
	MOVL tag+8(FP), AX
	VMOVD AX, X1
	VPBROADCASTD X1, Z1
	VMOVDQU32 (BX), Z0
	VPXORD Z1, Z0, Z1
	VPTESTNMD Z2, Z1, K1
	VPTESTNMD Z0, Z0, K2
	KMOVW K1, AX
	KMOVW K2, CX
	VZEROUPPER
	MOVL CX, DX
	NOTL DX
	ANDL DX, AX
	ANDL $0x7fff, AX
	SHLL $16, CX
	ORL AX, CX
	MOVL CX, ret+16(FP)
	RET

// func scanAVX2(bucket *[bucketWords]uint32, tag, tagMask uint32) uint32
TEXT ·scanAVX2(SB), NOSPLIT, $0-20
	MOVQ bucket+0(FP), BX
	MOVL tagMask+12(FP), AX
	VMOVD AX, X2
	VPBROADCASTD X2, Y2
	VPXOR Y3, Y3, Y3
	VMOVDQU (BX), Y0
	VMOVDQU 32(BX), Y1
	MOVL tag+8(FP), AX
	VMOVD AX, X4
	VPBROADCASTD X4, Y4
	VPXOR Y4, Y0, Y5
	VPXOR Y4, Y1, Y6
	VPAND Y2, Y5, Y5
	VPAND Y2, Y6, Y6
	VPCMPEQD Y3, Y5, Y5
	VPCMPEQD Y3, Y6, Y6
	VPCMPEQD Y3, Y0, Y0
	VPCMPEQD Y3, Y1, Y1
	VMOVMSKPS Y5, AX
	VMOVMSKPS Y6, DX
	SHLL $8, DX
	ORL  DX, AX
	VMOVMSKPS Y0, CX
	VMOVMSKPS Y1, DX
	VZEROUPPER
	SHLL $8, DX
	ORL  DX, CX
	MOVL CX, DX
	NOTL DX
	ANDL DX, AX
	ANDL $0x7fff, AX
	SHLL $16, CX
	ORL AX, CX
	MOVL CX, ret+16(FP)
	RET
