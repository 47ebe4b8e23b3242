using System;
using System.Collections.Generic;

namespace RtControl
{
    /// <summary>
    /// Bytes to messages, with caps. A frame above the limit ends the connection; a message of too many parts or bytes
    /// is thrown away while it comes, so that one without end fills no memory.
    /// </summary>
    internal sealed class ZmtpFrames
    {
        private const byte More = 1;
        private const byte Long = 2;
        private const byte Command = 4;

        private byte[] _in = new byte[4096];
        private int _start, _end;
        private List<byte[]> _parts = new List<byte[]>();
        private long _partBytes;
        private bool _discarding;

        /// <summary>Commands since the last look, oldest first.</summary>
        public readonly Queue<byte[]> Commands = new Queue<byte[]>();

        /// <summary>Messages thrown away because of a limit.</summary>
        public long Discarded { get; private set; }

        public int Count
        {
            get { return _end - _start; }
        }

        public byte[] Buffer
        {
            get { return _in; }
        }

        public int Start
        {
            get { return _start; }
        }

        public void Skip(int count)
        {
            _start += count;
        }

        public void Feed(byte[] bytes, int count)
        {
            if (_end + count > _in.Length)
            {
                // The head of a frame that is not whole yet moves to the front; the cap on frames bounds the growth.
                byte[] to = Count + count > _in.Length ? new byte[Math.Max(2 * _in.Length, Count + count)] : _in;
                System.Buffer.BlockCopy(_in, _start, to, 0, Count);
                _end = Count;
                _start = 0;
                _in = to;
            }
            System.Buffer.BlockCopy(bytes, 0, _in, _end, count);
            _end += count;
        }

        /// <summary>The next whole message, or null where more bytes are needed. Throws PeerException.</summary>
        public List<byte[]> Next()
        {
            byte flags;
            byte[] body;
            while (TakeFrame(out flags, out body))
            {
                if ((flags & Command) != 0)
                {
                    // One that floods with commands gets no queue without end.
                    if (Commands.Count < 16) Commands.Enqueue(body);
                    continue;
                }
                if (!_discarding) Keep(body);
                if ((flags & More) != 0) continue;
                List<byte[]> message = _parts;
                bool whole = !_discarding;
                _parts = new List<byte[]>();
                _partBytes = 0;
                _discarding = false;
                if (whole) return message;
            }
            return null;
        }

        private void Keep(byte[] body)
        {
            _parts.Add(body);
            _partBytes += body.Length;
            if (_parts.Count <= RtLimits.MaxParts && _partBytes <= RtLimits.MaxMessageBytes) return;
            _discarding = true;
            Discarded++;
            _parts.Clear();
        }

        private bool TakeFrame(out byte flags, out byte[] body)
        {
            flags = 0;
            body = null;
            if (Count < 2) return false;
            flags = _in[_start];
            if ((flags & ~(More | Long | Command)) != 0 || (flags & (More | Command)) == (More | Command))
                throw new PeerException("the peer sends no ZMTP frames");
            int head = (flags & Long) != 0 ? 9 : 2;
            if (Count < head) return false;
            ulong length = 0;
            for (int i = 1; i < head; i++) length = length << 8 | _in[_start + i];
            if (length > RtLimits.MaxMessageBytes) throw new PeerException("a frame of " + length + " bytes");
            if (Count < head + (int)length) return false;
            body = new byte[(int)length];
            System.Buffer.BlockCopy(_in, _start + head, body, 0, body.Length);
            _start += head + body.Length;
            return true;
        }

        /// <summary>A frame's head.</summary>
        public static byte[] Head(int length, bool more, bool command)
        {
            var flags = (byte)((more ? More : 0) | (command ? Command : 0));
            if (length < 256) return new[] { flags, (byte)length };
            var head = new byte[9];
            head[0] = (byte)(flags | Long);
            for (int i = 0; i < 4; i++) head[8 - i] = (byte)(length >> 8 * i);
            return head;
        }
    }
}
