package ticketing

import (
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/ticketing-project/ticketing/clients/go/internal/wire"
)

// Version is the version of this package.
const Version = "0.1.0"

// Option is an option of [Dial].
type Option interface {
	applyTo(*dialOptions) error
}

// AcquireOption is an option of an acquire or an adoption. Given to [Dial] it is the default of all.
type AcquireOption interface {
	Option
	applyToAcquire(*acquireOptions) error
}

type option func(*dialOptions) error

func (o option) applyTo(options *dialOptions) error { return o(options) }

type acquireOption func(*acquireOptions) error

func (o acquireOption) applyTo(options *dialOptions) error { return o(&options.defaults) }

func (o acquireOption) applyToAcquire(options *acquireOptions) error { return o(options) }

// dialOptions is everything that a client is made of, as it was given.
type dialOptions struct {
	secret, name, label *string
	keyPrefix           string
	defaults            acquireOptions
	tls                 *tls.Config
	fingerprint         []byte
	connectFor          time.Duration
	replyTimeout        time.Duration
	leaveOnClose        bool
	onEvent             func(Event)
	logger              *slog.Logger
	clientID            *uint64
	seed                *[16]byte
}

// Lease is how long the ticket lasts unless it is extended: at least a nanosecond, rounded up to a
// millisecond. Such a lease is fixed unless [AutoExtend] is set. Without it the lease is 30 seconds
// and is extended at each third while the ticket is held.
func Lease(lease time.Duration) AcquireOption {
	return acquireOption(func(o *acquireOptions) error {
		ms, err := leaseMs(lease)
		o.lease = &ms
		return err
	})
}

// WaitTimeout is how long to wait for the key, rounded up to a millisecond; 0 does not wait. Without
// it an acquire waits for ever.
func WaitTimeout(wait time.Duration) AcquireOption {
	return acquireOption(func(o *acquireOptions) error {
		ms, err := wholeMs("the wait timeout", wait)
		o.wait = &ms
		return err
	})
}

// WaitForever waits for ever, where the client's own default is shorter.
func WaitForever() AcquireOption {
	return acquireOption(func(o *acquireOptions) error {
		forever := uint32(wire.WaitMsForever)
		o.wait = &forever
		return nil
	})
}

// AutoExtend says whether the lease is extended at each third of it while the ticket is held.
// Without it: yes without a lease, no with one.
func AutoExtend(extend bool) AcquireOption {
	return acquireOption(func(o *acquireOptions) error {
		o.autoExtend = &extend
		return nil
	})
}

// Secret is what clients and server share: up to 1,024 bytes. Without it: TICKETING_SECRET, else empty.
func Secret(secret string) Option {
	return option(func(o *dialOptions) error {
		o.secret = &secret
		return nil
	})
}

// Name is what the server's logs call this client. Without it: TICKETING_NAME, else host:pid.
func Name(name string) Option {
	return option(func(o *dialOptions) error {
		o.name = &name
		return nil
	})
}

// KeyPrefix goes before every key on the wire and counts towards its 128 bytes. Tickets show keys without it.
func KeyPrefix(prefix string) Option {
	return option(func(o *dialOptions) error {
		o.keyPrefix = prefix
		return checkPrefix(prefix)
	})
}

// TLS is how TLS is spoken, for a ticketings:// URL: authorities, client certificates, the server's
// name. Without it the system's authorities are trusted. Versions before 1.2 are never spoken. The
// client keeps a copy.
func TLS(config *tls.Config) Option {
	return option(func(o *dialOptions) error {
		if config == nil {
			return invalid("TLS got a nil config")
		}
		o.tls = config
		return nil
	})
}

// Fingerprint pins the cluster that this client must be talking to: 32 bytes.
func Fingerprint(fingerprint []byte) Option {
	return option(func(o *dialOptions) error {
		if len(fingerprint) != wire.FingerprintBytes {
			return invalid("the fingerprint has %d bytes: it takes %d", len(fingerprint), wire.FingerprintBytes)
		}
		o.fingerprint = append([]byte(nil), fingerprint...)
		return nil
	})
}

// ConnectFor is how long [Dial] keeps trying. Without it each endpoint is tried once.
func ConnectFor(duration time.Duration) Option {
	return option(func(o *dialOptions) error {
		_, err := wholeMs("ConnectFor", duration)
		o.connectFor = duration
		return err
	})
}

// ReplyTimeout is when a try, an extend, an adoption or a ping without an answer fails. Without it: 10 seconds.
func ReplyTimeout(timeout time.Duration) Option {
	return option(func(o *dialOptions) error {
		ms, err := wholeMs("ReplyTimeout", timeout)
		if err == nil && ms == 0 {
			err = invalid("ReplyTimeout is 0: it takes more")
		}
		o.replyTimeout = time.Duration(ms) * time.Millisecond
		return err
	})
}

// ReleaseOnClose says whether [Client.Close] cancels what waits and releases what is held. Without it: yes.
func ReleaseOnClose(release bool) Option {
	return option(func(o *dialOptions) error {
		o.leaveOnClose = !release
		return nil
	})
}

// OnEvent is called with each [Event], one at a time and in order, on a goroutine of the client. It
// must not block, and must not wait for the client's calls; a panic of it is logged.
func OnEvent(hook func(Event)) Option {
	return option(func(o *dialOptions) error {
		o.onEvent = hook
		return nil
	})
}

// Logger gets the client's log lines. Without it: slog.Default().
func Logger(logger *slog.Logger) Option {
	return option(func(o *dialOptions) error {
		o.logger = logger
		return nil
	})
}

// ClientID fixes the client id, for tests that need the same bytes in every run. Without it: random.
func ClientID(id uint64) Option {
	return option(func(o *dialOptions) error {
		o.clientID = &id
		return nil
	})
}

// Seed fixes what nonces are derived from, for tests that need the same bytes in every run. Without it: random.
func Seed(seed [16]byte) Option {
	return option(func(o *dialOptions) error {
		o.seed = &seed
		return nil
	})
}

// Label fixes all of the client's label, for tests that need the same bytes in every run: 1 to 64
// bytes of printable ASCII without space. Without it: the name, `;go/` and the version.
func Label(label string) Option {
	return option(func(o *dialOptions) error {
		o.label = &label
		return checkLabel(label)
	})
}

// gather applies options and checks them.
func gather(given []Option) (*dialOptions, error) {
	o := &dialOptions{replyTimeout: wire.ClientReplyTimeoutMs * time.Millisecond}
	for _, one := range given {
		if one == nil {
			return nil, invalid("an option is nil")
		}
		if err := one.applyTo(o); err != nil {
			return nil, err
		}
	}
	if o.logger == nil {
		o.logger = slog.Default()
	}
	return o, nil
}

// gatherAcquire applies the options of one call.
func gatherAcquire(given []AcquireOption) (acquireOptions, error) {
	var o acquireOptions
	for _, one := range given {
		if one == nil {
			return o, invalid("an option is nil")
		}
		if err := one.applyToAcquire(&o); err != nil {
			return o, err
		}
	}
	return o, nil
}

// gatherWithoutWait is for calls that don't wait.
func gatherWithoutWait(of string, given []AcquireOption) (acquireOptions, error) {
	o, err := gatherAcquire(given)
	if err == nil && o.wait != nil {
		err = invalid("%s does not wait: it takes no option for that", of)
	}
	return o, err
}

// transport is how to connect there.
func (o *dialOptions) transport(to target) (transport, error) {
	if !to.tls {
		if o.tls != nil {
			return transport{}, invalid("TLS was given, but the URL does not say ticketings://")
		}
		return transport{}, nil
	}
	config := &tls.Config{}
	if o.tls != nil {
		config = o.tls.Clone()
	}
	config.MinVersion = max(config.MinVersion, tls.VersionTLS12)
	return transport{tls: config}, nil
}

// coreSettings completes the options from the environment.
func (o *dialOptions) coreSettings(to target) (*coreSettings, error) {
	settings := &coreSettings{
		endpoints: to.endpoints, fingerprint: o.fingerprint, keyPrefix: o.keyPrefix, defaults: o.defaults,
		connectForNs: int64(o.connectFor), replyTimeoutNs: int64(o.replyTimeout),
		releaseOnClose: !o.leaveOnClose, observed: o.onEvent != nil,
		secret: os.Getenv("TICKETING_SECRET"), seed: make([]byte, 16),
	}
	if o.secret != nil {
		settings.secret = *o.secret
	}
	if err := checkSecret(settings.secret); err != nil {
		return nil, err
	}
	var id [8]byte
	rand.Read(id[:])
	settings.clientID = binary.BigEndian.Uint64(id[:])
	if o.clientID != nil {
		settings.clientID = *o.clientID
	}
	rand.Read(settings.seed)
	if o.seed != nil {
		copy(settings.seed, o.seed[:])
	}
	settings.label = o.labelOrName()
	return settings, nil
}

func (o *dialOptions) labelOrName() string {
	if o.label != nil {
		return *o.label
	}
	name := os.Getenv("TICKETING_NAME")
	if o.name != nil {
		name = *o.name
	}
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		name = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	return makeLabel(name)
}
