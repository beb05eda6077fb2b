// Loads two or four matrices of 8 rows of 16 bytes. Each 8 lanes give the addresses of a matrix's
// rows. A lane gets 4 bytes of row lane / 4.
__device__ __forceinline__ void load_matrices(unsigned (&matrices)[4], unsigned row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(row)
               : "memory");
}

__device__ __forceinline__ void load_matrices(unsigned (&matrices)[2], unsigned row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(matrices[0]), "=r"(matrices[1])
               : "r"(row)
               : "memory");
}
