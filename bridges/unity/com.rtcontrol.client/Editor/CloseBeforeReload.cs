using RtControl.Unity;
using UnityEditor;

namespace RtControl.Editor
{
    /// <summary>Open sockets and threads hold up a domain reload: they are closed before it.</summary>
    [InitializeOnLoad]
    internal static class CloseBeforeReload
    {
        static CloseBeforeReload()
        {
            AssemblyReloadEvents.beforeAssemblyReload += RtControlClient.CloseAll;
            EditorApplication.quitting += RtControlClient.CloseAll;
            EditorApplication.playModeStateChanged += change =>
            {
                if (change == PlayModeStateChange.ExitingPlayMode) RtControlClient.CloseAll();
            };
        }
    }
}
