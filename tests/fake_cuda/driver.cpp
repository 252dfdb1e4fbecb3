// libcuda.so.1, the driver: torch asks it whether a device is in use, and little else. A separate
// library, because torch looks its functions up in the library of that name.
extern "C" {

int cuInit(unsigned) {
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
  *context = reinterpret_cast<void*>(1);
  return 0;
}
int cuCtxGetCurrent(void** context) {
  *context = reinterpret_cast<void*>(1);
  return 0;
}
int cuCtxSetCurrent(void*) {
  return 0;
}
int cuGetErrorString(int, const char** text) {
  *text = "an error of the fake CUDA runtime";
  return 0;
}
// CUDA_ERROR_NOT_SUPPORTED: torch asks the runtime too for the owner of a pointer.
int cuPointerGetAttribute(void*, int, unsigned long long) {
  return 801;
}
}
