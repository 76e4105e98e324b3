/* Colour, blur and normalisation of crops: all that happens to one image, while it lies in the cache.
 *
 * The same operations, in the same order, as colour.py, which says what they are. Pixels lie in planes, one per
 * channel, and are worked on in blocks that fit the nearest cache; only contrast, which needs the mean of the
 * whole image, and blur, which needs its neighbours, make a second pass.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { BRIGHTNESS, CONTRAST, SATURATION, HUE };
enum { BLOCK = 1024, LANES = 16, SLACK = 64 };

typedef float lanes __attribute__((vector_size(4 * LANES)));

typedef struct { /* the parameters of all views, as draws.Params holds them */
    const uint8_t *jitter, *grey, *solarize;
    const int64_t *order;           /* (views, 4) */
    const double *factors, *sigma; /* (views, 4), (views) */
} params;

typedef struct {
    int64_t channels, size, blur_kernel;
    const float *times, *plus; /* (channels): normalised = times · x + plus */
} look;

static float clamp01(float x) {
    x = x > 0 ? x : 0;
    return x < 1 ? x : 1;
}

static lanes load_lanes(const float *p) {
    lanes v;
    memcpy(&v, p, sizeof v);
    return v;
}

static void luma(float *const *x, int64_t channels, int n, float *restrict grey) {
    if (channels == 3) {
        const float *r = x[0], *g = x[1], *b = x[2];
        for (int i = 0; i < n; i++) grey[i] = 0.2989f * r[i] + 0.587f * g[i] + 0.114f * b[i];
        return;
    }
    memset(grey, 0, n * sizeof *grey);
    for (int64_t c = 0; c < channels; c++)
        for (int i = 0; i < n; i++) grey[i] += x[c][i] / (float)channels;
}

static void hue(float *restrict r, float *restrict g, float *restrict b, int n, float shift) {
    for (int i = 0; i < n; i++) {
        float red = r[i], green = g[i], blue = b[i];
        float top = red > green ? red : green, low = red > green ? green : red;
        top = top > blue ? top : blue;
        low = low < blue ? low : blue;
        float chroma = top - low, twice = 2 * chroma, thrice = 3 * chroma, full = top + chroma;
        float turn = copysignf(chroma - low - red + green + blue, green - blue) + chroma * (6 * shift);
        float to[3];
        for (int c = 0; c < 3; c++) {
            float away = c == 0 ? turn : c == 1 ? turn - twice : turn + twice;
            float value = full - fabsf(fabsf(fabsf(away) - thrice) - thrice);
            value = value > low ? value : low;
            to[c] = value < top ? value : top;
        }
        r[i] = to[0], g[i] = to[1], b[i] = to[2];
    }
}

/* One operation of the jitter on n pixels; `mean` is that of the grey image, for contrast. */
static void jitter(float *const *x, int64_t channels, int n, int64_t operation, float factor, float mean) {
    float grey[BLOCK];
    if (operation == HUE) {
        if (channels == 3) hue(x[0], x[1], x[2], n, factor);
        return;
    }
    if (operation == SATURATION) luma(x, channels, n, grey);
    float rest = 1 - factor, plus = operation == CONTRAST ? rest * mean : 0;
    for (int64_t c = 0; c < channels; c++) {
        float *y = x[c];
        if (operation == SATURATION)
            for (int i = 0; i < n; i++) y[i] = clamp01(factor * y[i] + rest * grey[i]);
        else
            for (int i = 0; i < n; i++) y[i] = clamp01(factor * y[i] + plus);
    }
}

/* One plane, blurred along columns and then rows, row by row; reflected at the edges. */
static void blur(const float *from, float *to, int size, const float *taps, int reach, float *room) {
    float *row = room + reach; /* with room for `reach` pixels on both sides */
    const float *lines[2 * reach + 1];
    for (int y = 0; y < size; y++) {
        for (int t = -reach; t <= reach; t++) {
            int line = y + t < 0 ? -y - t : y + t;
            lines[t + reach] = from + (int64_t)size * (line < size ? line : 2 * (size - 1) - line);
        }
        for (int x = 0; x < size; x += LANES) {
            lanes sum = load_lanes(lines[reach] + x) * taps[0];
            for (int t = 1; t <= reach; t++)
                sum += (load_lanes(lines[reach - t] + x) + load_lanes(lines[reach + t] + x)) * taps[t];
            memcpy(row + x, &sum, sizeof sum);
        }
        for (int t = 1; t <= reach; t++) row[-t] = row[t], row[size - 1 + t] = row[size - 1 - t];
        for (int x = 0; x < size; x += LANES) {
            lanes sum = load_lanes(row + x) * taps[0];
            for (int t = 1; t <= reach; t++)
                sum += (load_lanes(row + x - t) + load_lanes(row + x + t)) * taps[t];
            memcpy(to + (int64_t)size * y + x, &sum, sizeof sum); /* what is too much is overwritten */
        }
    }
}

static int make_taps(float *taps, double sigma, int64_t kernel) {
    int reach = (int)ceil(4 * sigma);
    if (reach > kernel / 2) reach = (int)(kernel / 2);
    double weights[reach + 1], sum = 0;
    for (int t = 0; t <= reach; t++) {
        weights[t] = exp(-0.5 * (t / sigma) * (t / sigma));
        sum += t ? 2 * weights[t] : 1;
    }
    for (int t = 0; t <= reach; t++) taps[t] = (float)(weights[t] / sum);
    return reach;
}

static void load(const void *pixels, int bytes, int64_t first, int n, float *restrict x) {
    if (bytes) {
        const uint8_t *from = (const uint8_t *)pixels + first;
        for (int i = 0; i < n; i++) x[i] = from[i] * (1 / 255.f);
    } else
        memcpy(x, (const float *)pixels + first, n * sizeof *x);
}

/* Solarize and normalise n pixels to their place, where the channels of a pixel lie side by side. */
static void store(float *const *x, int n, int solarize, const look *l, float *restrict out) {
    int64_t channels = l->channels;
    for (int64_t c = 0; solarize && c < channels; c++) {
        float *y = x[c];
        for (int i = 0; i < n; i++) y[i] = y[i] >= 128 / 255.f ? 1 - y[i] : y[i];
    }
    const float *a = l->times, *b = l->plus;
    if (channels == 3) {
        const float *red = x[0], *green = x[1], *blue = x[2];
        float a0 = a[0], a1 = a[1], a2 = a[2], b0 = b[0], b1 = b[1], b2 = b[2];
        for (int i = 0; i < n; i++) {
            out[3 * i] = a0 * red[i] + b0;
            out[3 * i + 1] = a1 * green[i] + b1;
            out[3 * i + 2] = a2 * blue[i] + b2;
        }
        return;
    }
    for (int64_t c = 0; c < channels; c++)
        for (int i = 0; i < n; i++) out[channels * i + c] = a[c] * x[c][i] + b[c];
}

/* One crop (channels, size, size) to `out` (size, size, channels); `view` is the place of its parameters. */
static void paint(const void *pixels, int bytes, const look *l, const params *p, int64_t view, float *room, float *out) {
    int64_t channels = l->channels, area = l->size * l->size;
    float *plane[channels + 1], *x[channels]; /* one plane more, for blur */
    for (int64_t c = 0; c <= channels; c++) plane[c] = room + c * (area + SLACK);
    room += (channels + 1) * (area + SLACK);
    int jittered = p && p->jitter[view], grey = p && p->grey[view], solarize = p && p->solarize[view];
    double sigma = p ? p->sigma[view] : 0, sum = 0;
    const int64_t *order = p ? p->order + 4 * view : 0;
    const double *factors = p ? p->factors + 4 * view : 0;
    int contrast = 0;
    while (jittered && order[contrast] != CONTRAST) contrast++;

    for (int pass = 0; pass <= jittered; pass++) /* before contrast, and from there on */
        for (int64_t start = 0; start < area; start += BLOCK) {
            int n = (int)(area - start < BLOCK ? area - start : BLOCK), last = pass == jittered;
            for (int64_t c = 0; c < channels; c++) {
                x[c] = plane[c] + start;
                if (!pass) load(pixels, bytes, c * area + start, n, x[c]);
            }
            for (int i = pass ? contrast : 0; jittered && i < (pass ? 4 : contrast); i++)
                jitter(x, channels, n, order[i], (float)factors[order[i]], (float)(sum / (double)area));
            float light[BLOCK];
            if (!last || grey) luma(x, channels, n, light);
            if (!last) {
                float part = 0;
#pragma omp simd reduction(+ : part)
                for (int i = 0; i < n; i++) part += light[i];
                sum += part;
            }
            for (int64_t c = 0; last && grey && c < channels; c++) memcpy(x[c], light, n * sizeof *light);
            if (last && sigma <= 0) store(x, n, solarize, l, out + channels * start);
        }
    if (sigma <= 0) return;
    float taps[l->blur_kernel / 2 + 1];
    int reach = make_taps(taps, sigma, l->blur_kernel);
    for (int64_t c = 0; c < channels; c++) {
        float *blurred = plane[channels];
        blur(plane[c], blurred, (int)l->size, taps, reach, room);
        plane[channels] = plane[c], plane[c] = blurred;
    }
    for (int64_t start = 0; start < area; start += BLOCK) {
        for (int64_t c = 0; c < channels; c++) x[c] = plane[c] + start;
        store(x, (int)(area - start < BLOCK ? area - start : BLOCK), solarize, l, out + channels * start);
    }
}

/* How many floats `ecpp_paint` needs to work in. */
int64_t ecpp_room(int64_t channels, int64_t size, int64_t blur_kernel) {
    return (channels + 1) * (size * size + SLACK) + size + blur_kernel + SLACK;
}

/* n crops, one after another in `pixels` (uint8, or float in [0, 1]), to their places in `out`; where `jitter`
 * is null they are only normalised. The places are also those of their parameters. */
void ecpp_paint(const void *pixels, int bytes, int64_t n, const int64_t *places, int64_t channels, int64_t size,
                const uint8_t *jitter, const int64_t *order, const double *factors, const uint8_t *grey,
                const double *sigma, const uint8_t *solarize, int64_t blur_kernel, const float *times,
                const float *plus, float *room, float *out) {
    params p = {jitter, grey, solarize, order, factors, sigma};
    look l = {channels, size, blur_kernel, times, plus};
    int64_t length = channels * size * size;
    for (int64_t i = 0; i < n; i++)
        paint((const char *)pixels + i * length * (bytes ? 1 : 4), bytes, &l, jitter ? &p : 0, places[i], room,
              out + places[i] * length);
}
