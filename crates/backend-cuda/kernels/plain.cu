// Ops over single numbers and rows, each by itself. Values are `[rows, channels]` of f32.
#include "weight.cuh"

#define EACH(i, n) \
    wait_before(); \
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < (n); i += (size_t)gridDim.x * blockDim.x)

extern "C" __global__ void add(const float* a, const float* b, float* y, size_t n) {
    EACH(i, n) y[i] = a[i] + b[i];
}

extern "C" __global__ void scale(const float* x, float* y, size_t n, float factor) {
    EACH(i, n) y[i] = x[i] * factor;
}

// `w` of one number or of one for each channel.
extern "C" __global__ void scale_by(const float* x, const float* w, float* y, size_t n, uint32_t width) {
    EACH(i, n) y[i] = x[i] * w[width == 1 ? 0 : i % width];
}

extern "C" __global__ void soft_cap(const float* x, float* y, size_t n, float cap) {
    EACH(i, n) y[i] = cap * tanhf(x[i] / cap);
}

extern "C" __global__ void gelu_gate(const float* gate, const float* up, float* y, size_t n) {
    EACH(i, n) y[i] = gelu_tanh(gate[i]) * up[i];
}

// The gate and the factors stand side by side, `[rows, 2·width]`.
extern "C" __global__ void gelu_halves(const float* x, float* y, size_t n, uint32_t width) {
    EACH(i, n) {
        const float* row = x + i / width * 2 * width;
        uint32_t c = i % width;
        y[i] = gelu_tanh(row[c]) * row[width + c];
    }
}

extern "C" __global__ void sigmoid_gate(const float* x, const float* gate, float* y, size_t n) {
    EACH(i, n) y[i] = x[i] / (1.0f + expf(-gate[i]));
}

// 0: gelu, 1: silu, 2: relu, which keeps what is not a number.
extern "C" __global__ void activate(const float* x, float* y, size_t n, uint32_t function) {
    EACH(i, n) {
        float v = x[i];
        y[i] = function == 0 ? gelu_tanh(v) : function == 1 ? v / (1.0f + expf(-v)) : v < 0.0f ? 0.0f : v;
    }
}

extern "C" __global__ void clamp(const float* x, const float* low, const float* high, float* y, size_t n) {
    EACH(i, n) {
        float v = x[i];
        v = v < low[0] ? low[0] : v;
        y[i] = v > high[0] ? high[0] : v;
    }
}

extern "C" __global__ void standardise(const float* x, const float* bias, const float* scale, float* y, size_t n,
                                       uint32_t width) {
    EACH(i, n) y[i] = (x[i] - bias[i % width]) * scale[i % width];
}

extern "C" __global__ void slice(const float* x, float* y, size_t n, uint32_t channels, uint32_t start, uint32_t len) {
    EACH(i, n) y[i] = x[i / len * channels + start + i % len];
}

extern "C" __global__ void concat(const float* a, const float* b, float* y, size_t n, uint32_t wa, uint32_t wb) {
    EACH(i, n) {
        size_t row = i / (wa + wb);
        uint32_t c = i % (wa + wb);
        y[i] = c < wa ? a[row * wa + c] : b[row * wb + c - wa];
    }
}

extern "C" __global__ void gather_rows(const float* x, const int* rows, float* y, size_t n, uint32_t channels) {
    EACH(i, n) y[i] = x[(size_t)rows[i / channels] * channels + i % channels];
}

extern "C" __global__ void soft_merge(const float* x, const int* index, const float* soft, float* y, size_t n,
                                      uint32_t channels) {
    EACH(i, n) {
        int s = index[i / channels];
        y[i] = s < 0 ? x[i] : soft[(size_t)s * channels + i % channels];
    }
}

// Rows `start + stride·id` of a table; where `soft` has no −1, row `soft_id`.
extern "C" __global__ void embed_raw(Raw w, const int* ids, const int* soft, float* y, size_t n, float scale,
                                     uint32_t start, uint32_t stride, uint32_t soft_id) {
    EACH(i, n) {
        size_t t = i / w.cols;
        size_t row = soft && soft[t] >= 0 ? (size_t)soft_id : start + (size_t)stride * (size_t)ids[t];
        y[i] = raw_number(w, row, i % w.cols) * scale;
    }
}

extern "C" __global__ void pool_rows(const float* x, float* y, size_t n, uint32_t channels, uint32_t size) {
    EACH(i, n) {
        size_t first = i / channels * size;
        float sum = 0.0f;
        for (uint32_t r = 0; r < size; r++) sum += x[(first + r) * channels + i % channels];
        y[i] = sum / (float)size;
    }
}

// `w` is `[taps, channels]`.
extern "C" __global__ void causal_conv1d(const float* x, const float* w, float* y, size_t n, uint32_t channels,
                                         uint32_t taps) {
    EACH(i, n) {
        size_t t = i / channels;
        uint32_t c = i % channels;
        float sum = 0.0f;
        for (uint32_t k = 0; k < taps; k++) {
            if (t + k + 1 < taps) continue;
            sum += w[k * channels + c] * x[(t + k + 1 - taps) * channels + c];
        }
        y[i] = sum;
    }
}

// 3×3, stride 2, a border of one zero. `w` is `[3, 3, n_in, n_out]`.
extern "C" __global__ void conv2d(const float* x, const float* w, float* y, size_t n, uint32_t n_rows, uint32_t width,
                                  uint32_t n_in, uint32_t n_out) {
    uint32_t width_out = (width + 1) / 2;
    EACH(i, n) {
        uint32_t o = i % n_out, column = i / n_out % width_out, row = i / n_out / width_out;
        float sum = 0.0f;
        for (uint32_t place = 0; place < 9; place++) {
            uint32_t r = 2 * row + place / 3, c = 2 * column + place % 3;
            if (r == 0 || r > n_rows || c == 0 || c > width) continue;
            const float* from = x + ((size_t)(r - 1) * width + c - 1) * n_in;
            const float* by = w + (size_t)place * n_in * n_out + o;
            for (uint32_t k = 0; k < n_in; k++) sum += by[(size_t)k * n_out] * from[k];
        }
        y[i] = sum;
    }
}

// Cosines and sines of the angles of each token: `[tokens, pairs, 2]`.
extern "C" __global__ void angles(const int* positions, const float* frequencies, float* y, size_t n, uint32_t pairs) {
    EACH(i, n) {
        float s, c;
        sincosf((float)positions[i / pairs] * frequencies[i % pairs], &s, &c);
        y[2 * i] = c;
        y[2 * i + 1] = s;
    }
}

// Turns pairs `i`, `i + head_dim/2` of each head by angles that are the token's own.
extern "C" __global__ void rope(const float* x, const float* angles, float* y, size_t n, uint32_t channels,
                                uint32_t head_dim, uint32_t pairs) {
    EACH(i, n) {
        size_t t = i / channels;
        uint32_t d = i % channels % head_dim, half = head_dim / 2, pair = d % half;
        if (pair >= pairs || d >= 2 * half) {
            y[i] = x[i];
            continue;
        }
        const float* a = angles + (t * pairs + pair) * 2;
        y[i] = d < half ? x[i] * a[0] - x[i + half] * a[1] : x[i] * a[0] + x[i - half] * a[1];
    }
}

// The first half of each head turns by the column, the second by the row.
extern "C" __global__ void axial_rope(const float* x, const int* columns, const int* rows, const float* frequencies,
                                      float* y, size_t n, uint32_t channels, uint32_t head_dim) {
    EACH(i, n) {
        size_t t = i / channels;
        uint32_t d = i % channels % head_dim, half = head_dim / 2, e = d % half, quarter = half / 2;
        int place = d < half ? columns[t] : rows[t];
        float s, c;
        sincosf((float)place * frequencies[e % quarter], &s, &c);
        y[i] = e < quarter ? x[i] * c - x[i + quarter] * s : x[i] * c + x[i - quarter] * s;
    }
}

// One block for each run of `width` channels.
extern "C" __global__ void rms_norm(const float* x, const float* w, float* y, uint32_t width, float eps, float offset) {
    __shared__ float shared[33];
    wait_before();
    x += (size_t)blockIdx.x * width;
    y += (size_t)blockIdx.x * width;
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x) sum += x[i] * x[i];
    float root = sqrtf(block_sum(sum, shared) / (float)width + eps);
    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x) {
        float v = x[i] / root;
        y[i] = w ? v * (offset + w[i]) : v;
    }
}

extern "C" __global__ void layer_norm(const float* x, const float* w, const float* b, float* y, uint32_t width,
                                      float eps) {
    __shared__ float shared[33];
    wait_before();
    x += (size_t)blockIdx.x * width;
    y += (size_t)blockIdx.x * width;
    float sum = 0.0f, first = x[0];
    // Less the first number, since numbers may be far from 0.
    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x) sum += x[i] - first;
    float mean = first + block_sum(sum, shared) / (float)width;
    sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x) sum += (x[i] - mean) * (x[i] - mean);
    float root = sqrtf(block_sum(sum, shared) / (float)width + eps);
    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x)
        y[i] = (x[i] - mean) / root * w[i] + (b ? b[i] : 0.0f);
}

// Rows of kept values or tokens, picked by their number.
extern "C" __global__ void pick_rows(const uint32_t* x, const int* rows, uint32_t* y, size_t n, uint32_t channels) {
    EACH(i, n) y[i] = x[(size_t)rows[i / channels] * channels + i % channels];
}
