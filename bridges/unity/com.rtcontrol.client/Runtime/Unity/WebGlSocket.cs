#if UNITY_WEBGL && !UNITY_EDITOR
using System.Runtime.InteropServices;

namespace RtControl.Unity
{
    /// <summary>What Plugins/WebGL/RtControlSocket.jslib has; says there what each does.</summary>
    internal static class WebGlSocket
    {
        [DllImport("__Internal")] public static extern int RtControlSocketOpen(string url, string protocols);
        [DllImport("__Internal")] public static extern int RtControlSocketState(int handle);
        [DllImport("__Internal")] public static extern int RtControlSocketSend(int handle, byte[] text, int length);
        [DllImport("__Internal")] public static extern int RtControlSocketWaiting(int handle);
        [DllImport("__Internal")] public static extern int RtControlSocketNext(int handle);
        [DllImport("__Internal")] public static extern void RtControlSocketTake(int handle, byte[] into, int size);
        [DllImport("__Internal")] public static extern int RtControlSocketWhy(int handle, byte[] into, int size);
        [DllImport("__Internal")] public static extern void RtControlSocketClose(int handle);
    }
}
#endif
