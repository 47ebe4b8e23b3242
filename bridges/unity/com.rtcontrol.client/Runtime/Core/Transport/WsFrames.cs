using System;
using System.Collections.Generic;
using System.Text;

namespace RtControl
{
    /// <summary>
    /// A server's bytes to WebSocket messages (RFC 6455, section 5), with caps that are in force before anything is kept.
    /// What breaks the protocol throws PeerException, and ends the connection.
    /// </summary>
    internal sealed class WsFrames
    {
        public const byte Text = 1, Binary = 2, CloseCode = 8, Ping = 9, Pong = 10;

        private const int MaxControl = 125;
        private static readonly UTF8Encoding Utf8 = new UTF8Encoding(false, true);

        private byte[] _in = new byte[4096];
        private int _start, _end;
        private byte[] _message; // the fragments so far; null: none began
        private int _kind, _length;

        /// <summary>What pings brought since the last look; a pong brings it back.</summary>
        public readonly Queue<byte[]> Pings = new Queue<byte[]>();

        public byte[] Buffer
        {
            get { return _in; }
        }

        public int Start
        {
            get { return _start; }
        }

        public int Count
        {
            get { return _end - _start; }
        }

        public void Skip(int count)
        {
            _start += count;
        }

        public void Feed(byte[] bytes, int count)
        {
            if (_end + count > _in.Length)
            {
                byte[] to = Count + count > _in.Length ? new byte[Math.Max(2 * _in.Length, Count + count)] : _in;
                System.Buffer.BlockCopy(_in, _start, to, 0, Count);
                _end = Count;
                _start = 0;
                _in = to;
            }
            System.Buffer.BlockCopy(bytes, 0, _in, _end, count);
            _end += count;
        }

        /// <summary>The next whole message: its text's bytes, or none where it is binary; null where more bytes are needed.</summary>
        public List<byte[]> Next()
        {
            int kind, at, length;
            bool last;
            while (Frame(out kind, out last, out at, out length))
            {
                _start = at + length;
                if (kind >= CloseCode)
                {
                    Control(kind, at, length);
                    continue;
                }
                if ((kind == 0) != (_message != null))
                    throw new PeerException(kind == 0 ? "the peer goes on with a message that it did not begin" : "the peer begins a message within another one");
                if (kind != 0)
                {
                    _kind = kind;
                    _length = 0;
                    _message = new byte[length];
                }
                if (_length + length > _message.Length) Array.Resize(ref _message, Math.Max(_length + length, Math.Min(2 * _message.Length, RtLimits.MaxMessageBytes)));
                System.Buffer.BlockCopy(_in, at, _message, _length, length);
                _length += length;
                if (!last) continue;
                byte[] whole = _message;
                if (whole.Length != _length) Array.Resize(ref whole, _length);
                _message = null;
                // A binary message is none of the protocol's.
                return _kind == Text ? new List<byte[]> { whole } : new List<byte[]>();
            }
            return null;
        }

        private bool Frame(out int kind, out bool last, out int at, out int length)
        {
            kind = at = length = 0;
            last = false;
            if (Count < 2) return false;
            byte first = _in[_start], second = _in[_start + 1];
            kind = first & 0x0f;
            last = (first & 0x80) != 0;
            bool control = kind >= CloseCode;
            if ((first & 0x70) != 0 || kind > Pong || kind > Binary && kind < CloseCode)
                throw new PeerException("the peer sends no WebSocket frames of RFC 6455");
            if ((second & 0x80) != 0) throw new PeerException("the peer masks its frames, as only a client does");
            int code = second & 0x7f;
            if (control && (!last || code > MaxControl)) throw new PeerException("the peer sends a control frame in parts, or too long");
            int extra = code == 126 ? 2 : code == 127 ? 8 : 0;
            if (Count < 2 + extra) return false;
            ulong size = extra == 0 ? (ulong)code : 0;
            for (var i = 0; i < extra; i++) size = size << 8 | _in[_start + 2 + i];
            if (extra == 2 && size < 126 || extra == 8 && size < 65536) throw new PeerException("the peer writes a length longer than it is");
            int before = control || _message == null ? 0 : _length;
            if (size > (ulong)(RtLimits.MaxMessageBytes - before)) throw new PeerException("a message of more than " + RtLimits.MaxMessageBytes + " bytes");
            at = _start + 2 + extra;
            length = (int)size;
            return Count >= 2 + extra + length;
        }

        private void Control(int kind, int at, int length)
        {
            if (kind == CloseCode) throw Closed(at, length);
            if (kind != Ping) return;
            var body = new byte[length];
            System.Buffer.BlockCopy(_in, at, body, 0, length);
            // One that floods with pings gets no queue without end; the newest is answered.
            if (Pings.Count >= 16) Pings.Dequeue();
            Pings.Enqueue(body);
        }

        private PeerException Closed(int at, int length)
        {
            if (length == 1) return new PeerException("the peer closes without a code");
            if (length == 0) return new PeerException("the server closed the WebSocket");
            int code = _in[at] << 8 | _in[at + 1];
            string reason;
            try
            {
                reason = Utf8.GetString(_in, at + 2, length - 2);
            }
            catch (ArgumentException)
            {
                reason = "";
            }
            return new PeerException("the server closed the WebSocket (" + code + (reason.Length > 0 ? ", " + reason : "") + ")");
        }

        /// <summary>One masked frame, whole. The mask (4 bytes) must be a new one each time.</summary>
        public static byte[] Masked(byte kind, byte[] body, byte[] mask)
        {
            int extra = body.Length < 126 ? 0 : body.Length < 65536 ? 2 : 8;
            var frame = new byte[2 + extra + 4 + body.Length];
            frame[0] = (byte)(0x80 | kind);
            frame[1] = (byte)(0x80 | (extra == 0 ? body.Length : extra == 2 ? 126 : 127));
            for (var i = 0; i < extra && i < 4; i++) frame[1 + extra - i] = (byte)(body.Length >> 8 * i);
            int at = 2 + extra;
            System.Buffer.BlockCopy(mask, 0, frame, at, 4);
            for (var i = 0; i < body.Length; i++) frame[at + 4 + i] = (byte)(body[i] ^ mask[i & 3]);
            return frame;
        }
    }
}
