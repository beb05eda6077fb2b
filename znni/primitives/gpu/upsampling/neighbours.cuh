// The samples of an input between which an upsampled one lies.

// The samples on both sides of a sample of the output, and the share of the one after.
struct Neighbours {
    int left, right;
    float share;
};

// Returns the neighbours along an axis. The nearest ones in [start, stop) stand for those outside.
// A refined axis has one sample more on each side.
__device__ __forceinline__ Neighbours neighbours(int at, int factor, int start, int stop) {
    if (factor == 1) {
        const int here = min(max(at, start), stop - 1);
        return {here, here, 0.5f};
    }
    const int phase = at % factor;
    const float place = (phase + 0.5f) / factor - 0.5f;
    const int low = at / factor + 1 + (2 * phase + 1 < factor ? -1 : 0);
    const int high = low + (2 * phase + 1 == factor ? 0 : 1);
    const float share = place < 0.0f ? place + 1.0f : place;
    const int left = min(max(low, start), stop - 1), right = min(max(high, start), stop - 1);
    return {left, right, left == right ? 0.5f : share};  // of the same: a 0 makes infinity NaN
}
