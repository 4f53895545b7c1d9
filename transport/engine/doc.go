// Package engine knows what inference engines put into a batch of KV-cache
// events: vLLM (array and map events), SGLang (arrays, maps, bigrams), TensorRT-LLM
// streaming and the Mooncake master. It decodes into one normalised form and, for
// mock engines, encodes every format.
//
// It knows no sockets and no sequence; it does not judge streams.
package engine
