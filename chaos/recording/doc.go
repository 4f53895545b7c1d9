// Package recording keeps the batches of one publisher in a file and plays them
// again: a Capture subscribes to a publisher and writes, a Player publishes what was
// written, at the recorded times, faster, or at a fixed rate.
//
// A file is a header and frames, all integers little-endian:
//
//	header   8  magic "kvc-rec\n"
//	         4  version, 1
//	         8  time of the recording, ns since 1970
//	         4  CRC-32C of the 20 bytes before
//
//	frame    4  length n of the body
//	         4  CRC-32C of the body
//	         n  body:   8  ns since the recording's time, never falling
//	                    8  sequence
//	                    2  length t of the topic
//	                    t  topic
//	                       payload, the rest
//
// A file that ends within a frame (a recorder was killed) is readable up to there;
// the reader says so with ErrTruncated. The package does not look into payloads, so
// whatever an engine sends is played back byte for byte.
package recording
