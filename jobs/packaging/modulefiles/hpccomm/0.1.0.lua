-- hpccomm for Lmod. This file stands in FOLDER/modulefiles/hpccomm, and the virtual environment that has
-- hpccomm in FOLDER/hpccomm/0.1.0.
whatis("Collective communication on NumPy and CuPy arrays for MPI programs, measured the way nccl-tests does")

-- The site's MPI library, in which mpi4py finds libmpi.so by LD_LIBRARY_PATH.
depends_on("openmpi")

local folder = myFileName():match("^(.*)/modulefiles/")
prepend_path("PATH", pathJoin(folder, myModuleFullName(), "bin"))
