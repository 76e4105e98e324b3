/* Crop, colour, blur and normalisation: all that happens to one view, while it lies in the cache.
 *
 * The same operations, in the same order, as geometry.py and colour.py, which say what they are. Pixels lie in
 * planes, one per channel, and are worked on in blocks that fit the nearest cache; only contrast, which needs the
 * mean of the whole view, and blur, which needs its neighbours, make a second pass.
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

typedef struct { /* images (n, channels, height, width) and where to cut them; without boxes they are the crops */
    const void *pixels;
    int64_t bytes, height, width; /* uint8, or float in [0, 1]? */
    const int64_t *boxes;         /* (views, 4): top, left, height, width; or null */
    const uint8_t *flip;          /* (views) */
} source;

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

static void load(const source *s, int64_t first, int n, float *restrict x) {
    if (s->bytes) {
        const uint8_t *from = (const uint8_t *)s->pixels + first;
        for (int i = 0; i < n; i++) x[i] = from[i] * (1 / 255.f);
    } else
        memcpy(x, (const float *)s->pixels + first, n * sizeof *x);
}

static int64_t padded(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

/* The triangle filter of one output pixel: its weights, and the first and last of the `length` pixels it sees. */
static void filter(int out, int size, int length, float *weights, int *first, int *last) {
    double step = (double)length / size, reach = step > 1 ? step : 1, centre = (out + 0.5) * step, sum = 0;
    int from = (int)(centre - reach + 0.5), to = (int)(centre + reach + 0.5);
    *first = from > 0 ? from : 0, *last = (to < length ? to : length) - 1;
    for (int k = *first; k <= *last; k++) {
        double weight = 1 - fabs((k + 0.5 - centre) / reach);
        weights[k - *first] = (float)(weight > 0 ? weight : 0);
        sum += weights[k - *first];
    }
    for (int k = *first; k <= *last; k++) weights[k - *first] /= (float)sum;
}

/* One crop of image `i`, resized: first along columns, then rows, whose filters are columns of a matrix. */
static void crop(const source *s, int64_t i, int64_t view, const look *l, float *const *plane, float *room) {
    const int64_t *box = s->boxes + 4 * view;
    int size = (int)l->size, h = (int)box[2], w = (int)box[3], wide = (int)padded(w), outs = (int)padded(size);
    float *cut = room, *row = cut + (int64_t)h * wide, *matrix = row + wide, *weights = matrix + (int64_t)w * outs;
    int first, last, begin[outs / LANES], end[outs / LANES];
    memset(matrix, 0, (int64_t)w * outs * sizeof *matrix);
    for (int b = 0; b < outs / LANES; b++) begin[b] = w, end[b] = 0;
    for (int x = 0; x < size; x++) {
        int to = s->flip && s->flip[view] ? size - 1 - x : x, b = to / LANES;
        filter(x, size, w, weights, &first, &last);
        for (int k = first; k <= last; k++) matrix[(int64_t)k * outs + to] = weights[k - first];
        if (first < begin[b]) begin[b] = first;
        if (last >= end[b]) end[b] = last + 1;
    }
    for (int64_t c = 0; c < l->channels; c++) {
        int64_t start = ((i * l->channels + c) * s->height + box[0]) * s->width + box[1];
        for (int y = 0; y < h; y++) load(s, start + y * s->width, w, cut + (int64_t)y * wide);
        for (int y = 0; y < size; y++) {
            filter(y, size, h, weights, &first, &last);
            for (int x = 0; x < wide; x += LANES) {
                lanes sum = {0};
                for (int k = first; k <= last; k++) sum += load_lanes(cut + (int64_t)k * wide + x) * weights[k - first];
                memcpy(row + x, &sum, sizeof sum);
            }
            for (int b = 0; b < outs / LANES; b++) {
                lanes sum = {0};
                for (int k = begin[b]; k < end[b]; k++)
                    sum += load_lanes(matrix + (int64_t)k * outs + b * LANES) * row[k];
                memcpy(plane[c] + (int64_t)y * size + b * LANES, &sum, sizeof sum); /* as in blur */
            }
        }
    }
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

/* One view of image `i` to `out` (size, size, channels); `view` is the place of its parameters. */
static void paint(const source *s, int64_t i, const look *l, const params *p, int64_t view, float *room, float *out) {
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
    if (s->boxes) crop(s, i, view, l, plane, room);

    for (int pass = 0; pass <= jittered; pass++) /* before contrast, and from there on */
        for (int64_t start = 0; start < area; start += BLOCK) {
            int n = (int)(area - start < BLOCK ? area - start : BLOCK), last = pass == jittered;
            for (int64_t c = 0; c < channels; c++) {
                x[c] = plane[c] + start;
                if (!pass && !s->boxes) load(s, (i * channels + c) * area + start, n, x[c]);
            }
            for (int o = pass ? contrast : 0; jittered && o < (pass ? 4 : contrast); o++)
                jitter(x, channels, n, order[o], (float)factors[order[o]], (float)(sum / (double)area));
            float light[BLOCK];
            if (!last || grey) luma(x, channels, n, light);
            if (!last) {
                float part = 0;
#pragma omp simd reduction(+ : part)
                for (int j = 0; j < n; j++) part += light[j];
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
int64_t ecpp_room(int64_t channels, int64_t size, int64_t blur_kernel, int64_t height, int64_t width) {
    int64_t wide = padded(width), outs = padded(size), longest = height > width ? height : width;
    int64_t to_crop = (height + 1) * wide + width * outs + longest, to_blur = size + blur_kernel + SLACK;
    return (channels + 1) * (size * size + SLACK) + (to_crop > to_blur ? to_crop : to_blur);
}

/* n views to their places in `out`, which are also those of their boxes and parameters; view i is of image
 * `which[i]`. Where `jitter` is null they are only normalised. */
void ecpp_paint(const void *pixels, int64_t bytes, int64_t height, int64_t width, const int64_t *boxes,
                const uint8_t *flip, int64_t n, const int64_t *which, const int64_t *places, int64_t channels,
                int64_t size, const uint8_t *jitter, const int64_t *order, const double *factors,
                const uint8_t *grey, const double *sigma, const uint8_t *solarize, int64_t blur_kernel,
                const float *times, const float *plus, float *room, float *out) {
    source s = {pixels, bytes, height, width, boxes, flip};
    params p = {jitter, grey, solarize, order, factors, sigma};
    look l = {channels, size, blur_kernel, times, plus};
    for (int64_t i = 0; i < n; i++)
        paint(&s, which[i], &l, jitter ? &p : 0, places[i], room, out + places[i] * channels * size * size);
}
