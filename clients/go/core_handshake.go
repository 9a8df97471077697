package ticketing

import (
	"bytes"
	"errors"

	"github.com/ticketing-project/ticketing/clients/go/internal/wire"
)

// errLeft ends the reading of a connection that was left while its bytes were read.
var errLeft = errors.New("the connection was left")

// readGreeting collects the greeting and answers it with a hello; it returns what came after it.
func (l *link) readGreeting(data []byte, nowNs int64) ([]byte, error) {
	taken := min(len(data), wire.GreetingBytes-len(l.greeting))
	l.greeting = append(l.greeting, data[:taken]...)
	if !wire.LooksLikeGreeting(l.greeting) {
		hint := ""
		if l.greeting[0] == 0x15 || l.greeting[0] == 0x16 {
			hint = " (it speaks TLS: use ticketings://)"
		}
		return nil, broken("no greeting of a ticketing server%s", hint)
	}
	if len(l.greeting) < wire.GreetingBytes {
		return nil, nil
	}
	greeting, err := wire.ParseGreeting(l.greeting)
	if err != nil {
		return nil, err
	}
	if !greeting.SpeaksOurVersion() {
		l.drop(newError(KindProtocol, "no common version: the server speaks %d to %d, this client %d",
			greeting.MinVersion, greeting.MaxVersion, wire.ProtocolVersion), nowNs)
		return nil, errLeft
	}
	l.hellos++
	settings := l.core.settings
	l.nonce = wire.ClientNonce(settings.seed, uint64(l.hellos))
	hello := wire.Hello{
		Version: wire.ProtocolVersion, ClientID: settings.clientID, Connection: l.hellos,
		Nonce: l.nonce, Label: []byte(settings.label),
	}
	l.outgoing = append(l.outgoing, outItem{frame: hello.Frame([]byte(settings.secret), l.greeting)})
	l.state = helloSent
	l.core.deadlines.set(&l.alarm, l, nowNs+wire.ClientHandshakeTimeoutMs*nsPerMs)
	return data[taken:], nil
}

func (l *link) readReplies(serial uint64, data []byte, nowNs int64) error {
	return l.reader.Feed(data, func(reply *wire.Reply) error {
		err := l.readReply(reply, nowNs)
		if err == nil && (serial != l.serial || !l.exists()) {
			err = errLeft
		}
		return err
	})
}

func (l *link) readReply(reply *wire.Reply, nowNs int64) error {
	switch reply.Op {
	case wire.ReplyError:
		return l.readError(reply, nowNs)
	case wire.ReplyWelcome:
		if l.state == helloSent {
			return l.readWelcome(reply, nowNs)
		}
	case wire.ReplyLeader:
		if l.state == ready || l.state == leaderless {
			return l.leaderMoved(reply.Tail, nowNs)
		}
	case wire.ReplyPing:
		if l.state == ready && reply.ID == keepaliveEcho {
			if !l.pingUnanswered {
				return broken("a reply to a ping that was not sent")
			}
			l.pingUnanswered = false
			l.setSilenceDeadline() // The next ping may be due before the death was.
			return nil
		}
		fallthrough
	default:
		if l.state == ready {
			return l.core.linkReply(reply, nowNs)
		}
	}
	return broken("a frame %c %v", reply.Op, l.state)
}

func (l *link) readWelcome(reply *wire.Reply, nowNs int64) error {
	settings := l.core.settings
	welcome := wire.Welcome{
		Role: reply.Code, KeepaliveS: reply.KeepaliveS, Fingerprint: reply.Fingerprint, Leader: reply.Tail,
	}
	if !wire.SameProof(welcome.Proof([]byte(settings.secret), l.greeting, l.nonce), reply.Proof) {
		l.drop(newError(KindAuth, "the server can't prove that it knows the secret of this client"), nowNs)
		return nil
	}
	if settings.fingerprint != nil && !bytes.Equal(settings.fingerprint, reply.Fingerprint) {
		l.drop(newError(KindAuth, "the server is of another cluster: its fingerprint is %x", reply.Fingerprint), nowNs)
		return nil
	}
	if err := wire.CheckWelcome(reply.Code, reply.KeepaliveS); err != nil {
		return err
	}
	named, err := leaderEndpoint(reply.Tail)
	if err != nil {
		return err
	}
	l.rounds.welcomed = true
	l.keepaliveNs = int64(reply.KeepaliveS) * nsPerS
	switch reply.Code {
	case wire.RoleFollower:
		if named == (endpoint{}) {
			return broken("a follower names no leader")
		}
		l.rounds.leaderNamed(named, l.endpoint)
		l.drop(newError(KindConnection, "a follower; it names %v as leader", named), nowNs)
	case wire.RoleUnknown:
		l.state = leaderless
		l.core.deadlines.set(&l.alarm, l, nowNs+wire.ClientNoLeaderWaitMs*nsPerMs)
	default:
		if named != (endpoint{}) {
			l.rounds.leaderNamed(named, l.endpoint)
		}
		l.becomeReady(nowNs)
	}
	return nil
}

func (l *link) becomeReady(nowNs int64) {
	l.state = ready
	if l.firstConnection {
		l.firstConnection = false
		l.backoff.reset()
	}
	l.readyNs, l.receivedNs = nowNs, nowNs
	l.setSilenceDeadline()
	l.core.linkReady(nowNs)
}

func (l *link) readError(reply *wire.Reply, nowNs int64) error {
	if err := wire.CheckErrorCode(reply.Code); err != nil {
		return err
	}
	row := wire.Errors[reply.Code]
	text := said(reply.Code, string(reply.Tail))
	if l.state == ready {
		switch {
		case reply.ID != 0:
			return l.core.linkReply(reply, nowNs)
		case reply.Code == wire.ErrorNotServing:
			l.notServing(text, nowNs)
		case !row.Closes:
			return broken("%s without a request", row.Name)
		default:
			l.core.linkRefused(reply.Code, text, nowNs)
		}
		return nil
	}
	kind := KindConnection
	if row.Kind == string(KindAuth) || row.Kind == string(KindProtocol) {
		kind = Kind(row.Kind)
	}
	if reply.Code == wire.ErrorAuthFailed {
		text += " (set the server's secret as option Secret or in TICKETING_SECRET)"
	}
	l.drop(newError(kind, "%s", text), nowNs)
	return nil
}

func (l *link) leaderMoved(leader []byte, nowNs int64) error {
	named, err := leaderEndpoint(leader)
	if err != nil {
		return err
	}
	l.rounds.tryAgain(named)
	l.rounds.leaderNamed(named, l.endpoint)
	where := "elsewhere"
	if named != (endpoint{}) {
		where = "to " + named.String()
	}
	l.reconnect("the server sends its clients "+where, nowNs)
	return nil
}

// leaderEndpoint is the endpoint that a server names; the zero endpoint where it names none.
func leaderEndpoint(leader []byte) (endpoint, error) {
	if len(leader) == 0 {
		return endpoint{}, nil
	}
	named, ok := parseAddress(string(leader), 0)
	if !ok {
		return endpoint{}, broken("the leader %q is no host:port", sanitised(string(leader)))
	}
	return named, nil
}
